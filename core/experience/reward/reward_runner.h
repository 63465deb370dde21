// RewardRunner: all reward functions of the config over a SampleBatch, weighted and summed.
//
// A function that does not apply to a row gives NaN, and that row's sum omits it. A row to which none applies is not
// valid, and its group's statistics omit it. Rewards of single tokens count in the row's reward and keep their places
// (ScoredBatch::token_scores). A failure is NaN too, never 0, and is counted. The run stops if more than
// plugins.max_failed_fraction of the rows fail. plugin/worker decides where functions run, and handles crashes and
// hangs. Thread rule: one thread at a time.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "config/keys/reward.h"
#include "experience/reward/shared_scores.h"
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
  int64_t timeout_ms = 0;      // for the rows of a step; 0 = none
  int64_t row_timeout_ms = 0;  // for one row or group; 0 = none
  WorkerLimits limits;
  Json params = Json::object();
  RewardUse used_in = RewardUse::kAll;
};

struct ScoreContext {
  int64_t step = 0;
  int64_t max_response_length = 0;
  bool is_validation = false;
  std::string val_set{};            // a validation's name, "" for data.val_files
  std::vector<std::string> only{};  // labels of the rewards that score a validation; empty: all
};

// Writes the rows of a batch that is about to stop the run, each with the reason why a reward failed on it. Returns the
// file; nothing if the config wants none.
using FailedBatchSink = std::function<Result<std::optional<Path>>(const PromptBatch&, const SampleBatch&,
                                                                  const ScoredBatch&, const ScoreContext&)>;

// The processes that share the scoring of each batch. This room does not know how they talk.
struct ScoreRanks {
  int rank = 0, size = 1;
  // Every rank's bytes, in rank order, on every rank.
  std::function<Result<std::vector<std::string>>(const std::string&)> exchange = [](const std::string& own) {
    return Result<std::vector<std::string>>(std::vector<std::string>{own});
  };
};

class RewardRunner {
 public:
  // `isolation` says where the functions run; the limits in it are replaced by each function's own.
  static Result<RewardRunner> create(PluginRegistry& registry, const std::vector<RewardSpec>& specs, const RunKey& key,
                                     double max_failed_fraction, const IsolationOptions& isolation);

  // Uses existing functions, one for each of `specs`.
  static RewardRunner over(const std::vector<RewardSpec>& specs, std::vector<std::unique_ptr<RewardFunction>> functions,
                           double max_failed_fraction);

  // Every rank scores a block of the prompts (foundation/batch/rank_block.h) and gets the scores of all. A function that
  // keeps state, or that looks at a whole batch, is exact only if it sees all rows: rank 0 scores them.
  Result<> use_ranks(ScoreRanks ranks);

  // Rows with several turns have rewards of their environment (SampleTurns::rewards): one more column, named
  // "environment".
  void use_environment(double weight) { environment_weight_ = weight; }

  // The data columns that rewards see, with their types: those of the whole data set, for every batch.
  void use_columns(ColumnTypes types) { types_ = std::move(types); }

  Result<ScoredBatch> score(const PromptBatch& prompts, const SampleBatch& samples, const ScoreContext& context,
                            MetricSet* metrics);

  // The same while sampling continues: begin(), feed() as soon as all rows of a prompt are finished, and score() as
  // above when all are. Functions in workers score meanwhile; the results are the same.
  Result<> begin(const PromptBatch& prompts, int64_t num_samples_per_prompt, const ScoreContext& context);
  Result<> feed(const PromptBatch& prompts, const SampleBatch& samples, int64_t prompt);
  // Between the two, often: workers that are done get more, and rows that take too long are ended.
  Result<> tend();

  // Called by score() before its Error that too many rows failed, which names the file.
  void keep_failed_batches(FailedBatchSink sink) { failed_batches_ = std::move(sink); }

  [[nodiscard]] size_t num_functions() const { return functions_.size(); }
  // Every function, with the name that its state is saved under.
  std::vector<std::pair<std::string, RewardFunction*>> functions();

 private:
  struct Function {
    RewardSpec spec;
    std::unique_ptr<RewardFunction> reward;
    bool is_shared = true;  // each rank scores its prompts
  };
  RewardRunner(std::vector<Function> functions, double max_failed_fraction);
  // Does the function score the rows of this context?
  [[nodiscard]] static bool scores(const Function& function, const ScoreContext& context);
  [[nodiscard]] bool works_ahead() const;
  // The prompts that this rank scores with the function.
  [[nodiscard]] RankBlock block_of(const Function& function, size_t num_prompts) const;
  Result<std::vector<ScorePart>> finish_own(size_t num_prompts, int64_t num_samples, bool with_metrics);
  Result<std::vector<std::vector<ScorePart>>> exchange_parts(const std::vector<ScorePart>& own, size_t num_rows) const;
  Result<> work_off();
  void show_progress() const;
  // The error that ends the run, with the place of its rows.
  [[nodiscard]] Error keep_rows(Error error, const PromptBatch& prompts, const SampleBatch& samples,
                                const ScoredBatch& scored, const ScoreContext& context) const;

  std::vector<Function> functions_;
  double max_failed_fraction_;
  ScoreRanks ranks_;
  FailedBatchSink failed_batches_;
  std::optional<double> environment_weight_;
  ColumnTypes types_;
  ScoreContext context_;
  std::vector<uint8_t> fed_;              // by prompt; empty: begin() was not called
  int64_t num_rows_ = 0, num_given_ = 0;  // the batch's rows, and how many of them functions have
};

// The typed columns of B rows: prompt and completion as text and ids, and the data columns that `types` names. `block`:
// only the rows of these prompts.
RewardBatch make_reward_batch(const PromptBatch& prompts, const SampleBatch& samples, const ColumnTypes& types,
                              const ScoreContext& context, const std::optional<RankBlock>& block = std::nullopt);

}  // namespace mortise
