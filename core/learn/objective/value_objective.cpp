// Computes the clipped value loss and its gradient per token.
#include "learn/objective/value_objective.h"

#include <algorithm>

namespace mortise {

double value_objective(std::span<const float> vpreds, const StepView& view, double cliprange_value,
                       std::span<float> grad_vpreds, MetricSet& metrics) {
  const auto values = view.get<column::Values>(), returns = view.get<column::Returns>(),
             weights = view.get<column::Weight>();
  const auto mask = view.get<column::ResponseMask>();
  double loss = 0.0, clipped = 0.0, tokens = 0.0, sum = 0.0;
  for (size_t t = 0; t < vpreds.size(); ++t) {
    grad_vpreds[t] = 0.0F;
    if (mask[t] == 0) continue;
    const auto v = static_cast<double>(vpreds[t]);
    const auto old = static_cast<double>(values[t]);
    const auto target = static_cast<double>(returns[t]);
    const auto weight = static_cast<double>(weights[t]);
    const double v_clip = std::clamp(v, old - cliprange_value, old + cliprange_value);
    const double plain = (v - target) * (v - target);
    const double bounded = (v_clip - target) * (v_clip - target);
    loss += 0.5 * weight * std::max(plain, bounded);
    // If the clipped branch is larger, the value is outside the range, and no gradient passes the clamp.
    grad_vpreds[t] = bounded > plain ? 0.0F : static_cast<float>(weight * (v - target));
    clipped += bounded > plain ? 1.0 : 0.0;
    tokens += 1.0;
    sum += v;
  }
  metrics.add("critic/vf_clipfrac", clipped, tokens);
  metrics.add("critic/vpred_mean", sum, tokens);
  return loss;
}

}  // namespace mortise
