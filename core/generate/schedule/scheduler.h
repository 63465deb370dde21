// Who decodes when: requests wait in order, their samples are admitted while there are rows and KV pages, finished ones
// leave at once, and completions wait for a reader.
//
// A sample's pages are reserved for its longest completion when it is admitted, so nothing that runs is ever evicted. A
// prompt's pages are reserved with its first sample and given up with its last; prompts that begin alike share whole
// pages (prefix_cache.h). On a device a sample's pages follow one another (SchedulerOptions::joins_pages).
// Thread rule: one thread at a time. No libtorch here.
#pragma once

#include <cstdint>
#include <deque>
#include <list>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "foundation/batch/sample_batch.h"
#include "generate/decode/kv_cache.h"
#include "generate/sample/sampling.h"
#include "generate/sample/stop_strings.h"
#include "generate/schedule/prefix_cache.h"
#include "text/guide/token_guide.h"

namespace mortise {

struct GenerateRequest {
  int64_t request_id = 0;
  std::vector<int64_t> prompt_ids;
  int64_t num_samples = 1;
  int64_t first_row_id = 0;  // sample j is row first_row_id + j of the step
  uint64_t seed = 0;
  int64_t step = 0;
  SamplingParams sampling;
  int64_t num_top_log_probs = 0;  // the likeliest tokens at each position that are told, as well as the sampled one
  std::shared_ptr<TokenGuide> guide = {};  // made by the engine from sampling.regex; null: none
};

struct GeneratedSequence {
  int64_t request_id = 0;
  int64_t sample_index = 0;
  FinishReason finish_reason = FinishReason::kLength;
  int64_t weight_version = 0;
  std::vector<int64_t> ids;
  std::vector<float> log_prob;
  std::vector<float> filtered_log_prob;  // empty where nothing was penalised, barred or filtered
  std::vector<TokenLogProb> top;         // [tokens * num_top_log_probs], best first
  std::vector<uint16_t> experts;         // that prompt and completion took (expert_choices.h); empty: not recorded
};

// A prompt and what its samples share.
struct GenerateGroup {
  GenerateRequest request;
  int64_t next_sample = 0;  // the next to admit
  int64_t num_running = 0;
  bool has_pages = false;  // reserved
  bool prefilled = false;
  std::vector<float*> pages;            // the prompt's (on a device: its full ones); empty: the runner keeps none
  int64_t num_known = 0;                // tokens whose pages were already there
  PrefixCache::Node* prefix = nullptr;  // the part of `pages` in the prefix cache
  std::vector<uint16_t> experts;        // that the prompt took; empty: not recorded
  std::shared_ptr<const std::vector<int64_t>> slots;  // the prompt's in SampledForward; null: it is not kept
  int64_t first_slot = 0;          // slots from here on are its own, those before it are other prompts'
  std::vector<float> last_hidden;  // [H] of the last prompt token, final norm applied: where every sample begins

  [[nodiscard]] int64_t num_prompt_ids() const { return static_cast<int64_t>(request.prompt_ids.size()); }
};

struct RunningSample {
  GenerateGroup* group = nullptr;
  uint64_t number = 0;  // no other sample of the scheduler has it
  int64_t reserved_pages = 0;
  std::vector<float*> pages;  // behind the group's
  int64_t first_slot = -1;    // where its own begin in SampledForward; -1: it is not kept
  TokenHistory history;
  std::optional<StopStringFinder> stop_strings;
  GuidePlace guide;
  GeneratedSequence sequence;

  // What changes the logits of the next token. Where a pattern leaves barred tokens alone, it wins: these may come.
  [[nodiscard]] TokenEdits edits();
};

struct SchedulerOptions {
  int64_t max_num_seqs = 256;
  bool holds_pages = true;  // the runner keeps keys and values in pages
  // A sample's own pages continue the full pages of its prompt, and it takes all of them when it is admitted. Otherwise they
  // begin with its first token, and the runner takes them.
  bool joins_pages = false;
  int64_t max_unused_prefix_pages = 0;   // pages of prompts that are done
  bool shares_prefixes = true;           // prompts that begin alike share pages
  const Tokenizer* tokenizer = nullptr;  // for stop strings; null: no request has any
};

class Scheduler {
 public:
  Scheduler(KvCache& kv, const SchedulerOptions& options)
      : kv_(kv), options_(options), prefixes_(kv, options.max_unused_prefix_pages) {}

  // Pages that one sample of this request needs at most, prompt included.
  [[nodiscard]] static int64_t pages_for(const GenerateRequest& request, bool joins_pages = false);
  void add(GenerateRequest request);
  // Moves waiting samples to the running ones while rows and pages allow.
  void admit(int64_t weight_version);
  // The running samples, in order of admission.
  [[nodiscard]] std::span<const std::unique_ptr<RunningSample>> running() const { return running_; }
  // Appends its token to each running sample, in order; those that end leave. One with kNotDrawn stays as it is.
  void accept(std::span<const SampledToken> tokens);
  // Ends request_id (-1: all): what runs becomes partial, what waits becomes empty.
  void abort(int64_t request_id, int64_t weight_version);
  // Prompts must be computed again (the weights changed). Precondition: nothing is running.
  void forget_prompts();

  [[nodiscard]] bool has_work() const { return !running_.empty() || !groups_.empty(); }
  // Requests with samples that have not started.
  [[nodiscard]] int64_t num_waiting_requests() const { return num_waiting_requests_; }
  [[nodiscard]] uint64_t outstanding() const;  // samples that no reader has taken
  [[nodiscard]] std::deque<GeneratedSequence>& finished() { return finished_; }
  [[nodiscard]] const PrefixCache& prefixes() const { return prefixes_; }
  [[nodiscard]] uint64_t num_prefilled_tokens() const { return num_prefilled_tokens_; }

 private:
  int64_t take_sample(GenerateGroup& group);  // the index of the next one to start
  bool admit_one(GenerateGroup& group, int64_t weight_version);
  bool hold_prompt(GenerateGroup& group, int64_t further_pages);
  [[nodiscard]] int64_t num_shared_blocks(std::span<const int64_t> ids) const {
    return options_.holds_pages && options_.shares_prefixes ? PrefixCache::num_blocks(ids) : 0;
  }
  [[nodiscard]] bool reserve(int64_t pages);
  static std::optional<FinishReason> end_of(RunningSample& sample);
  void finish(RunningSample& sample, FinishReason reason);
  void release(GenerateGroup& group);
  void drop_finished_groups();

  KvCache& kv_;
  SchedulerOptions options_;
  PrefixCache prefixes_;
  std::list<GenerateGroup> groups_;  // with samples that wait or run; addresses do not change
  std::vector<std::unique_ptr<RunningSample>> running_;
  std::deque<GeneratedSequence> finished_;
  uint64_t num_prefilled_tokens_ = 0, num_admitted_ = 0;
  int64_t num_waiting_requests_ = 0;
};

}  // namespace mortise
