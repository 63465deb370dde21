// RolloutCorrection: corrects for samples that another policy made than the one that learns from them (other kernels,
// other precision, older weights). It computes importance weights, and rejects tokens or rows that are too far off.
//
// With d = log-prob of the policy - log-prob of the sampler per token, clamped to +-20 before any exp():
//   weights    token exp(d), sequence exp(sum d), geometric exp(mean d); cut at a bound, or 0 outside of bounds
//   rejection  k1 = -d, k2 = d^2/2, k3 = exp(d) - 1 - d, by token or as sum, mean or maximum over the row
// Numbers and names are verl's (`algorithm.rollout_correction`, rollout_corr_helper.py of verl 0.9); geometric weights
// are ms-swift's. Decoupled mode works once a step on the policy that sampled; bypass mode works in every update on the
// current policy, with the sampler's log-probs as the old ones. Rows without an unmasked token count nowhere.
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

// The log-ratios from which everything here is computed. mask: 1 = a token that counts.
struct LogRatios {
  std::span<const int64_t> row_offsets;  // [B+1]
  std::span<const uint8_t> mask;         // [N]
  std::span<const float> policy;         // [N] log-probs of the policy
  std::span<const float> sampler;        // [N] log-probs of the sampler

  [[nodiscard]] double log_ratio(size_t t) const {
    return static_cast<double>(policy[t]) - static_cast<double>(sampler[t]);
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

  // Adds rollout_corr/* if `metrics` is given. Precondition: all spans fit together.
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
