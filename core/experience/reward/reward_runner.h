// RewardRunner: all reward functions of the config over a SampleBatch, weighted and summed.
//
// A function that does not apply to a row gives NaN, and that row's sum omits it. A row to which none applies is not
// valid, and its group's statistics omit it. Rewards of single tokens count in the row's reward and keep their places
// (ScoredBatch::token_scores). A failure is NaN too, never 0, and is counted. The run stops if more than
// plugins.max_failed_fraction of the rows fail. plugin/worker decides where functions run, and handles crashes and
// hangs. Thread rule: one thread at a time.
#pragma once

#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "config/keys/reward.h"
#include "experience/reward/reward_batch.h"
#include "experience/reward/shared_prompts.h"
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

// Writes the rows of a batch that is about to stop the run, each with the reason why a reward failed on it. Returns the
// file; nothing if the config wants none.
using FailedBatchSink = std::function<Result<std::optional<Path>>(const PromptBatch&, const SampleBatch&,
                                                                  const ScoredBatch&, const ScoreContext&)>;

class RewardRunner {
 public:
  // `isolation` says where the functions run; the limits in it are replaced by each function's own.
  static Result<RewardRunner> create(PluginRegistry& registry, const std::vector<RewardSpec>& specs, const RunKey& key,
                                     double max_failed_fraction, const IsolationOptions& isolation);

  // Uses existing functions, one for each of `specs`.
  static RewardRunner over(const std::vector<RewardSpec>& specs, std::vector<std::unique_ptr<RewardFunction>> functions,
                           double max_failed_fraction);

  // The ranks score the prompts together (shared_prompts.h), and every rank gets the scores of all. They make the same calls
  // of begin() and score(). A function that keeps state, or that looks at a whole batch, is exact only if it sees all rows:
  // rank 0 scores them, in order.
  Result<> use_ranks(ScoreRanks ranks);

  // Rows with several turns have rewards of their environment (SampleTurns::rewards): one more column, named
  // "environment".
  void use_environment(double weight) { environment_weight_ = weight; }

  // The data columns that rewards see, with their types: those of the whole data set, for every batch.
  void use_columns(ColumnTypes types) { types_ = std::move(types); }

  Result<ScoredBatch> score(const PromptBatch& prompts, const SampleBatch& samples, const ScoreContext& context,
                            MetricSet* metrics);

  // The same while sampling continues: begin(), feed() as soon as all rows of a prompt are finished, and score() as
  // above when all are. Functions in workers score meanwhile; the results are the same. A prompt is fed on one rank.
  Result<> begin(const PromptBatch& prompts, int64_t num_samples_per_prompt, const ScoreContext& context);
  Result<> feed(const PromptBatch& prompts, const SampleBatch& samples, int64_t prompt);
  // Between the two, often: workers that are done get more, also of other ranks, and rows that take too long are ended.
  // `samples`: as feed() had them. Waits for the workers for so long at most.
  Result<> tend(const PromptBatch& prompts, const SampleBatch& samples, int wait_ms = 0);
  // After begin(): does tend() have anything to do?
  [[nodiscard]] bool works_ahead() const;

  // Called by score() before its Error that too many rows failed, which names the file.
  void keep_failed_batches(FailedBatchSink sink) { failed_batches_ = std::move(sink); }

  [[nodiscard]] size_t num_functions() const { return functions_.size(); }
  // Prompts that other ranks sampled and that functions here took while rows of the batch were sampled.
  [[nodiscard]] int64_t num_taken_over() const { return num_taken_over_; }
  // Every function, with the name that its state is saved under.
  std::vector<std::pair<std::string, RewardFunction*>> functions();

 private:
  struct Function {
    RewardSpec spec;
    std::unique_ptr<RewardFunction> reward;
    bool is_shared = true;  // the ranks score its rows together
    // What becomes of the batch:
    std::vector<int64_t> begun{};                // prompts that `reward` has
    std::vector<int64_t> rows{};                 // and their rows, and those of parts of others
    std::deque<int64_t> waiting{};               // sampled prompts that it does not have yet
    std::unique_ptr<PromptHandover> handover{};  // while rows are sampled
    std::unique_ptr<PromptClaims> claims{};      // on prompts that no rank has begun
    ClaimSize claim_size{};                      // in `claims`
    bool has_more = false;                       // in `claims`
  };
  RewardRunner(std::vector<Function> functions, double max_failed_fraction);
  // Does the function score the rows of this context?
  [[nodiscard]] static bool scores(const Function& function, const ScoreContext& context);
  // Do all ranks score rows of the function?
  [[nodiscard]] bool is_split(const Function& function) const { return ranks_.size > 1 && function.is_shared; }
  [[nodiscard]] bool is_elsewhere(const Function& function) const { return !function.is_shared && ranks_.rank != 0; }
  // Rows of a batch with its data columns.
  struct Rows {
    const PromptBatch& prompts;
    const SampleBatch& samples;
    [[nodiscard]] size_t size() const { return samples.rows.size(); }
  };
  Result<> begin_batch(const PromptBatch& prompts, int64_t num_samples_per_prompt, const ScoreContext& context);
  [[nodiscard]] RewardBatch batch_of(const Rows& all, std::span<const int64_t> rows) const;
  Result<> give(Function& function, const Rows& rows, int64_t prompt) const;
  Result<> give_waiting(Function& function, const Rows& rows);
  Result<> hand_over(Function& function, const Rows& rows);
  Result<> take_over(Function& function, const Rows& rows);
  [[nodiscard]] bool is_received(int64_t prompt) const;
  Result<> close_shares();
  Result<> give_all(Function& function, const Rows& rows, std::deque<RewardBatch>& batches) const;
  Result<> split(const Rows& rows, std::deque<RewardBatch>& batches);
  void share_queue(Function& function, const std::vector<std::vector<int64_t>>& lists, int64_t n) const;
  Result<> take_claimed(Function& function, const Rows& rows) const;
  Result<std::vector<ScorePart>> finish_own(const Rows& rows);
  Result<std::vector<std::vector<ScorePart>>> exchange_parts(const std::vector<ScorePart>& own, size_t num_rows) const;
  Result<> work_off(const Rows& rows);
  Result<RewardOutput> join(const Function& function, std::vector<ScorePart> parts, size_t num_rows,
                            MetricSet* metrics) const;
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
  bool has_begun_ = false;
  int64_t num_rows_ = 0, num_given_ = 0;  // the batch's rows, and how many of them functions have
  SampleBatch received_;                  // rows of other ranks that were handed over to this one
  std::vector<uint8_t> is_received_;      // by prompt; empty: none
  int64_t num_taken_over_ = 0;
};

}  // namespace mortise
