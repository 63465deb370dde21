// AdvantageRunner: the advantages of a scored step, through the advantage plugin that the config names.
//
// Outcome rewards are at the last response token of their row. A KL penalty (algorithm.use_kl_in_reward) is subtracted
// from every token before the estimator sees the rewards. Thread rule: one thread at a time.
#pragma once

#include <span>
#include <string>

#include "foundation/batch/sample_batch.h"
#include "foundation/batch/scored_batch.h"
#include "foundation/batch/step_table.h"
#include "foundation/formats/json.h"
#include "foundation/metrics/registry.h"
#include "plugin/host/kinds/advantage_estimator.h"

namespace mortise {

struct AdvantageOptions {
  int64_t step = 1;
  bool normalize_then_sum = false;  // reward_aggregation.h; else the weighted sum as it is
};

class AdvantageRunner {
 public:
  static Result<AdvantageRunner> create(PluginRegistry& registry, const std::string& estimator, const Json& params,
                                        const RunKey& key, const RemoteMaker& remote = {});

  // Puts token_level_scores, token_level_rewards, advantages and returns into the table of these samples. The estimator
  // sees the table's columns, as far as its C struct has them. `penalty` [N] is taken off the token rewards; empty: 0.
  Result<> compute(StepTable& table, const SampleBatch& samples, const ScoredBatch& scored,
                   const AdvantageOptions& options, std::span<const float> penalty, MetricSet* metrics);

  [[nodiscard]] const PluginInfo& info() const { return estimator_.info(); }
  PluginInstance& instance() { return estimator_.instance(); }

 private:
  explicit AdvantageRunner(AdvantageEstimator estimator) : estimator_(std::move(estimator)) {}
  AdvantageEstimator estimator_;
};

// A_t += coefficient (log-prob of the teacher - log-prob of the old policy), if the table has the teacher's.
void add_teacher_advantages(double coefficient, StepTable& table, MetricSet& metrics);

}  // namespace mortise
