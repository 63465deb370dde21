// RolloutRunner: the SampleBatch of a PromptBatch, through whichever rollout backend the config names.
//
// Requests go out with back-pressure, sequences come back in any order and are put in their place; every row must come
// back exactly once. Randomness is a function of (seed, step, row, token), so the order does not matter.
// Thread rule: one thread at a time.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "experience/rollout/turns/turn_loop.h"
#include "foundation/batch/prompt_batch.h"
#include "foundation/batch/sample_batch.h"
#include "foundation/metrics/registry.h"
#include "plugin/host/kinds/rollout_backend.h"
#include "text/guide/pattern_check.h"
#include "text/tokenizer/tokenizer.h"

namespace mortise {

struct RolloutPlan {
  int64_t num_samples = 1;  // n per prompt
  Sampling sampling;
  bool is_filtered = false;  // rows get their log-probs after penalties, forbidden tokens and filters
  uint64_t seed = 0;
  int64_t vocab_size = 0;    // that of the model that learns from the rows; 0: ids are not checked
  int64_t first_row_id = 0;  // first row of a batch that is not the step's first
  // The next prompt that this process samples, or nothing when there are no more. Null: all prompts in order.
  std::function<Result<std::optional<int64_t>>()> next_prompt = {};
  int64_t max_rows = 0;  // with next_prompt: rows that are out at the same time, at least a prompt's; 0: any number
  bool is_validation = false;   // environments are told so
  bool stop_on_signal = false;  // SIGINT and SIGTERM end the collection with an error (training finishes its step)
};

struct OpenRows;  // row_segments.h

class RolloutRunner {
 public:
  static Result<RolloutRunner> create(PluginRegistry& registry, const std::string& backend, const Json& params,
                                      const RunKey& key);

  // An error if a completion does not follow the plan's pattern: the backend, or a server behind it, did not know it.
  // `progress(done, total)` is called as rows arrive; may be empty.
  // `on_prompt(batch, prompt)` is called once all rows of a prompt are in the batch, `on_turn(batch)` several times a
  // second meanwhile; an error of either ends the collection.
  Result<SampleBatch> collect(const PromptBatch& prompts, const RolloutPlan& plan, const Tokenizer& tokenizer,
                              MetricSet* metrics, const std::function<void(int64_t, int64_t)>& progress = {},
                              const std::function<Result<>(const SampleBatch&, int64_t)>& on_prompt = {},
                              const std::function<Result<>(const SampleBatch&)>& on_turn = {});

  // The next piece of each row in `batches` that is not done. The plan's next_prompt counts the prompts with such rows
  // (open_prompts in row_segments.h), and it is asked whenever fewer than max_rows rows are out. `progress` as
  // above; `on_turn()` is called as often.
  Result<> collect_segments(std::span<const OpenRows> batches, const RolloutPlan& plan, const Tokenizer& tokenizer,
                            MetricSet* metrics, const std::function<void(int64_t, int64_t)>& progress = {},
                            const std::function<Result<>()>& on_turn = {});

  // Rows have several turns from now on (rollout.multi_turn). Several runners may share the parts, one at a time.
  void use_turns(std::shared_ptr<TurnParts> turns) { turns_ = std::move(turns); }

  // Until wake() the backend frees the memory that only sampling needs; level 2: also its weights.
  Result<> sleep(int level);
  Result<> wake();  // nothing to do where it is awake

  Result<void> set_version(int64_t version) { return backend_.set_version(version); }
  RolloutBackend& backend() { return backend_; }

 private:
  explicit RolloutRunner(RolloutBackend backend) : backend_(std::move(backend)) {}
  // Submits what the backend accepts of `requests`, takes that out, and polls if there is anything to wait for.
  // `outstanding` is what the last poll said. How many were accepted.
  Result<size_t> exchange(std::vector<RolloutRequest>& requests, uint64_t& outstanding, int64_t timeout_ms,
                          const RolloutSink& sink, MetricSet* metrics);
  // That of the plan's pattern; null without one.
  Result<const PatternCheck*> pattern_check(const std::string& regex);
  [[nodiscard]] Error accepts_nothing() const;
  [[nodiscard]] Error lost_rows(int64_t num_arrived, int64_t num_begun) const;
  RolloutBackend backend_;
  std::shared_ptr<TurnParts> turns_;           // null: a row is one turn
  std::optional<PatternCheck> pattern_check_;  // for checked_regex_
  std::string checked_regex_;
  bool is_asleep_ = false;
};

}  // namespace mortise
