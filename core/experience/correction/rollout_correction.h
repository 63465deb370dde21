// RolloutCorrection: what is done about samples whose sampler was not the policy that learns from them (other kernels,
// other precision, older weights): importance weights, and rejection of tokens or rows too far off.
//
// With d = log_prob - rollout_log_prob per token, clamped to +-20 before any exp():
//   weights    token exp(d), sequence exp(sum d), geometric exp(mean d); cut at a bound, or 0 outside of bounds
//   rejection  k1 = -d, k2 = d^2/2, k3 = exp(d) - 1 - d, by token or as sum, mean or maximum over the row
// Numbers and names are verl's (`algorithm.rollout_correction`, rollout_corr_helper.py of verl 0.9); geometric weights
// are ms-swift's. Decoupled mode works once a step on the policy that sampled; bypass mode works in every update on the
// current policy, and the sampler's log-probs stand for the old ones. Rows without an unmasked token count nowhere.
// Shapes: N tokens of B rows, flat. Thread rule: const calls from any thread.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "config/correction_rules.h"
#include "foundation/base/result.h"
#include "foundation/metrics/registry.h"

namespace mortise {

// The log-ratios that everything here is made of. mask: 1 = a token that counts.
struct LogRatios {
  std::span<const int64_t> row_offsets;     // [B+1]
  std::span<const uint8_t> mask;            // [N]
  std::span<const float> log_prob;          // [N] of the policy
  std::span<const float> rollout_log_prob;  // [N] of the sampler

  [[nodiscard]] double log_ratio(size_t t) const {
    return static_cast<double>(log_prob[t]) - static_cast<double>(rollout_log_prob[t]);
  }
};

struct CorrectedBatch {
  std::vector<float> weights;  // [N], 0 where masked before; empty without a weight rule
  std::vector<uint8_t> mask;   // [N] what the rules leave of the mask
};

class RolloutCorrection {
 public:
  // An Error is parse_correction_rules's.
  static Result<RolloutCorrection> create(const RolloutCorrectionConfig& config);

  // Adds rollout_corr/* where `metrics` is given. Precondition: all spans fit together.
  [[nodiscard]] CorrectedBatch apply(const LogRatios& ratios, MetricSet* metrics) const;

  [[nodiscard]] bool is_active() const { return weights_.has_value() || !rejections_.empty(); }
  [[nodiscard]] bool is_bypass() const { return bypass_; }
  // In bypass mode PPO's own ratio carries the correction already.
  [[nodiscard]] bool weighs_loss() const { return weights_.has_value() && (!bypass_ || reinforce_); }

 private:
  std::optional<WeightRule> weights_;
  std::vector<RejectionRule> rejections_;
  bool bypass_ = false;
  bool reinforce_ = false;
};

}  // namespace mortise
