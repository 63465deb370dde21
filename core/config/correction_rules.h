// Parses the texts of [algorithm.rollout_correction] into rules, which experience/correction applies.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "config/run_config.h"
#include "foundation/base/result.h"

namespace mortise {

struct WeightRule {
  WeightLevel level = WeightLevel::kToken;
  double upper = 2.0;
  std::optional<double> lower;
  bool zero_outside = false;  // else weights are cut at the bounds
  bool batch_normalize = false;

  [[nodiscard]] double lower_or_default() const { return lower.value_or(1.0 / upper); }  // for the metrics
};

// One statistic that a token or row must keep within bounds.
struct RejectionRule {
  enum class Over { kToken, kSum, kMean, kMax };
  std::string name;  // "seq_mean_k3"
  Over over = Over::kToken;
  int estimator = 1;  // k1, k2, k3
  double upper = 0.0;
  std::optional<double> lower;  // k1 only; its bounds are logs of those in the config
};

struct CorrectionRules {
  std::optional<WeightRule> weights;
  std::vector<RejectionRule> rejections;
};

// The place (`where`) of an Error is the key.
Result<CorrectionRules> parse_correction_rules(const RolloutCorrectionConfig& config);

}  // namespace mortise
