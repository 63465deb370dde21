// Who decodes when: requests wait in order, their samples are admitted while there are rows and KV pages, finished ones
// leave at once, and completions wait for a reader.
//
// A sample's pages are reserved for its longest completion when it is admitted, so nothing that runs is ever evicted. A
// prompt's pages are reserved with its first sample and freed with its last.
// Thread rule: one thread at a time. No libtorch here.
#pragma once

#include <cstdint>
#include <deque>
#include <list>
#include <memory>
#include <span>
#include <vector>

#include "foundation/batch/sample_batch.h"
#include "generate/decode/kv_cache.h"
#include "generate/sample/sampling.h"

namespace mortise {

struct GenerateRequest {
  int64_t request_id = 0;
  std::vector<int64_t> prompt_ids;
  int64_t num_samples = 1;
  int64_t first_row_id = 0;  // sample j is row first_row_id + j of the step
  uint64_t seed = 0;
  int64_t step = 0;
  SamplingParams sampling;
};

struct GeneratedSequence {
  int64_t request_id = 0;
  int64_t sample_index = 0;
  FinishReason finish_reason = FinishReason::kLength;
  int64_t weight_version = 0;
  std::vector<int64_t> ids;
  std::vector<float> log_prob;
  std::vector<float> filtered_log_prob;  // empty where nothing was filtered or barred
};

// A prompt and what its samples share.
struct GenerateGroup {
  GenerateRequest request;
  int64_t next_sample = 0;  // the next to admit
  int64_t num_running = 0;
  bool has_pages = false;  // reserved
  bool prefilled = false;
  std::vector<float*> pages;
  std::vector<float> last_hidden;  // [H] of the last prompt token, final norm applied: where every sample begins

  [[nodiscard]] int64_t num_prompt_ids() const { return static_cast<int64_t>(request.prompt_ids.size()); }
};

struct RunningSample {
  GenerateGroup* group = nullptr;
  int64_t reserved_pages = 0;
  std::vector<float*> pages;  // of its own tokens
  GeneratedSequence sequence;
};

class Scheduler {
 public:
  Scheduler(KvCache& kv, int64_t max_num_seqs) : kv_(kv), max_num_seqs_(max_num_seqs) {}

  // Pages that one sample of this request needs at most, prompt included.
  [[nodiscard]] static int64_t pages_for(const GenerateRequest& request);
  void add(GenerateRequest request);
  // Moves waiting samples to the running ones while rows and pages allow.
  void admit(int64_t weight_version);
  // The running samples, in order of admission.
  [[nodiscard]] std::span<const std::unique_ptr<RunningSample>> running() const { return running_; }
  // Appends one token to each running sample, in order; those that end leave.
  void accept(std::span<const SampledToken> tokens);
  // Ends request_id (-1: all): what runs becomes partial, what waits becomes empty.
  void abort(int64_t request_id, int64_t weight_version);
  // Prompts must be computed again (the weights changed). Precondition: nothing is running.
  void forget_prompts();

  [[nodiscard]] bool has_work() const { return !running_.empty() || !groups_.empty(); }
  [[nodiscard]] int64_t num_waiting_requests() const;
  [[nodiscard]] uint64_t outstanding() const;  // samples not yet taken by a reader
  [[nodiscard]] std::deque<GeneratedSequence>& finished() { return finished_; }

 private:
  bool admit_one(GenerateGroup& group, int64_t weight_version);
  void finish(RunningSample& sample, FinishReason reason);
  void release(GenerateGroup& group);
  void drop_finished_groups();

  KvCache& kv_;
  int64_t max_num_seqs_;
  std::list<GenerateGroup> groups_;  // with samples that wait or run; addresses stay
  std::vector<std::unique_ptr<RunningSample>> running_;
  std::deque<GeneratedSequence> finished_;
};

}  // namespace mortise
