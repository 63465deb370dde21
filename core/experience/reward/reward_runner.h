// RewardRunner: all reward functions of the config over a SampleBatch, weighted and summed.
//
// A function that does not apply to a row gives NaN and is left out of that row's sum; a row to which none applies is
// not valid and is left out of its group's statistics. What a function gives to single tokens counts in the row's
// reward and keeps its place (ScoredBatch::token_scores). A failure is NaN too, never 0, and is counted: above
// plugins.max_failed_fraction of the rows the run stops. Where the functions run, and what becomes of one that crashes
// or hangs, is in plugin/worker. Thread rule: one thread at a time.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "foundation/base/env.h"
#include "foundation/batch/prompt_batch.h"
#include "foundation/batch/sample_batch.h"
#include "foundation/batch/scored_batch.h"
#include "foundation/metrics/registry.h"
#include "plugin/worker/reward_function.h"

namespace mortise {

struct RewardSpec {
  std::string use;    // plugin name
  std::string label;  // column name
  std::string where;  // place of its entry in the config, for errors
  double weight = 1.0;
  int64_t timeout_ms = 0;      // of the rows of a step; 0 = none
  int64_t row_timeout_ms = 0;  // of one row or group; 0 = none
  WorkerLimits limits;
  Json params = Json::object();
};

struct ScoreContext {
  int64_t step = 0;
  int64_t max_response_length = 0;
  bool is_validation = false;
};

// Keeps the rows of a batch that is about to end the run for people to look at, each with the reason why a reward
// failed on it. The file that they are in; nothing where none is asked for.
using FailedBatchKeeper = std::function<Result<std::optional<Path>>(const PromptBatch&, const SampleBatch&,
                                                                    const ScoredBatch&, const ScoreContext&)>;

class RewardRunner {
 public:
  // `isolation` says where the functions run; the limits in it are replaced by each function's own.
  static Result<RewardRunner> create(PluginRegistry& registry, const std::vector<RewardSpec>& specs, const RunKey& key,
                                     double max_failed_fraction, const IsolationOptions& isolation);

  // Over functions that are there already, one for each of `specs`.
  static RewardRunner over(const std::vector<RewardSpec>& specs, std::vector<std::unique_ptr<RewardFunction>> functions,
                           double max_failed_fraction);

  // The data columns that rewards see, and their types: of the whole data set, whatever is in a batch.
  void use_columns(ColumnTypes types) { types_ = std::move(types); }

  Result<ScoredBatch> score(const PromptBatch& prompts, const SampleBatch& samples, const ScoreContext& context,
                            MetricSet* metrics);

  // The same while the samples are still being made: begin(), feed() as soon as all rows of a prompt are there, and
  // score() as above when all are. Functions in workers score meanwhile; the results are the same.
  Result<> begin(const PromptBatch& prompts, int64_t num_samples_per_prompt, const ScoreContext& context);
  Result<> feed(const PromptBatch& prompts, const SampleBatch& samples, int64_t prompt);
  // Between the two, often: workers that are done get more, and rows that take too long are ended.
  Result<> tend();

  // Called by score() before its Error that too many rows failed, which names the file.
  void keep_failed_batches(FailedBatchKeeper keeper) { keeper_ = std::move(keeper); }

  [[nodiscard]] size_t num_functions() const { return functions_.size(); }
  // Every function, with the name that its state is saved under.
  std::vector<std::pair<std::string, RewardFunction*>> functions();

 private:
  struct Function {
    RewardSpec spec;
    std::unique_ptr<RewardFunction> reward;
  };
  RewardRunner(std::vector<Function> functions, double max_failed_fraction);
  [[nodiscard]] bool works_ahead() const;
  Result<> work_off();
  // The error that ends the run, with the place of its rows.
  [[nodiscard]] Error keep_rows(Error error, const PromptBatch& prompts, const SampleBatch& samples,
                                const ScoredBatch& scored, const ScoreContext& context) const;

  std::vector<Function> functions_;
  double max_failed_fraction_;
  FailedBatchKeeper keeper_;
  ColumnTypes types_;
  ScoreContext context_;
  std::vector<uint8_t> fed_;  // by prompt; empty: begin() was not called
};

// The typed columns of B rows: prompt and completion as text and ids, and the data columns that `types` names.
RewardBatch make_reward_batch(const PromptBatch& prompts, const SampleBatch& samples, const ColumnTypes& types,
                              const ScoreContext& context);

}  // namespace mortise
