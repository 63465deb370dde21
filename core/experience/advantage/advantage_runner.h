// AdvantageRunner: the AdvantageBatch of a scored step, through the advantage plugin that the config names.
//
// Outcome rewards stand at the last response token of their row; a KL penalty (algorithm.use_kl_in_reward) is taken off
// every token before the estimator sees them. Thread rule: one thread at a time.
#pragma once

#include <span>
#include <string>

#include "foundation/batch/advantage_batch.h"
#include "foundation/batch/sample_batch.h"
#include "foundation/batch/scored_batch.h"
#include "foundation/formats/json.h"
#include "foundation/metrics/registry.h"
#include "plugin/host/kinds/advantage_estimator.h"

namespace mortise {

// Optional inputs of the estimator, flat over all rows; empty = not available.
struct AdvantageContext {
  int64_t step = 1;
  bool normalize_then_sum = false;            // reward_aggregation.h; else the weighted sum as it is
  std::span<const float> token_penalty;       // [N] taken off the token rewards
  std::span<const float> old_log_prob;        // [N]
  std::span<const float> rollout_is_weights;  // [N]
  std::span<const float> values;              // [N] of the critic
  std::span<const float> reward_baselines;    // [B] of the greedy completion
  std::span<const float> sum_pi_squared;      // [N]
  std::span<const uint8_t> response_mask;     // [N] in place of the layout's own
};

class AdvantageRunner {
 public:
  static Result<AdvantageRunner> create(PluginRegistry& registry, const std::string& estimator, const Json& params,
                                        const RunKey& key);

  Result<AdvantageBatch> compute(const SampleBatch& samples, const ScoredBatch& scored, const AdvantageContext& context,
                                 MetricSet* metrics);

  [[nodiscard]] const PluginInfo& info() const { return estimator_.info(); }
  PluginInstance& instance() { return estimator_.instance(); }

 private:
  explicit AdvantageRunner(AdvantageEstimator estimator) : estimator_(std::move(estimator)) {}
  AdvantageEstimator estimator_;
};

// The flat layout of the samples (offsets, groups, mask), before any reward. Aborted rows are masked out, and so are
// truncated ones where the batch says so.
AdvantageBatch make_layout(const SampleBatch& samples);

}  // namespace mortise
