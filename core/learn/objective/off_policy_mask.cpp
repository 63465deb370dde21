// Masks tokens with negative advantage in rows whose mean log ratio exceeds the threshold.
#include "learn/objective/off_policy_mask.h"

namespace mortise {

void off_policy_mask(const StepView& view, double threshold, std::span<float> weight) {
  const Layout& layout = view.layout;
  const auto behaviour =
      view.has<column::RolloutLogProb>() ? view.get<column::RolloutLogProb>() : view.get<column::OldLogProb>();
  const auto log_prob = view.get<column::LogProb>(), advantages = view.get<column::Advantages>();
  const auto mask = view.get<column::ResponseMask>();
  for (size_t row = 0; row + 1 < layout.row_offsets.size(); ++row) {
    const auto begin = static_cast<size_t>(layout.row_offsets[row]);
    const auto end = static_cast<size_t>(layout.row_offsets[row + 1]);
    double sum = 0.0, tokens = 0.0;
    for (size_t t = begin; t < end; ++t) {
      if (mask[t] == 0) continue;
      sum += static_cast<double>(behaviour[t]) - static_cast<double>(log_prob[t]);
      tokens += 1.0;
    }
    if (!(sum / tokens > threshold)) continue;  // nor where the sum is no number: that must show in the loss
    for (size_t t = begin; t < end; ++t) {
      if (advantages[t] < 0.0F) weight[t] = 0.0F;
    }
  }
}

}  // namespace mortise
