// What gspo, gspo_token and luspo share: the clipped surrogate of the row's ratio.
//   s = exp(mean over the row of log_prob - old_log_prob),  loss of each token = max(-A min(s, delta), -A clamp(s, 1 -
//   low, 1 + high))
#pragma once

#include <limits>

#include <mortise/cpp/mortise.hpp>

#include "../shared/clip.h"

namespace mortise {

struct ClippedSequence : Clipped<SequenceLoss> {
  static constexpr std::uint32_t flags = MORTISE_FLAG_CONCURRENT | MORTISE_FLAG_SURROGATE_GRADIENT;
  static constexpr bool accepts_cuda = true;

  double delta =
      param("delta", none, "two-sided clip: cap of the ratio itself, above 1 + clip_ratio_high; not set: off")
          .at_least(0);
  double max_log_ratio;
  double cap = 0;

  explicit ClippedSequence(double most = 10.0)
      : max_log_ratio(
            param("max_log_ratio", most, "cap of the mean log ratio from above, without gradient beyond; none: no cap")
                .at_least(0)) {}

  void setup(Call call) override {
    Clipped::setup(call);
    cap = first_set(delta, std::numeric_limits<double>::infinity());
    max_log_ratio = first_set(max_log_ratio, std::numeric_limits<double>::infinity());
  }

  enum { kClipped, kKl, kNone, kLow, kHigh, kRatio };
  static constexpr Metric metrics[] = {
      {kClipped, "actor/pg_clipfrac", Average::kTokens},    {kKl, "actor/ppo_kl", Average::kTokens},
      {kNone, "actor/pg_clipfrac_lower", Average::kTokens}, {kLow, "clip_ratio/low_mean", Average::kRows},
      {kLow, "clip_ratio/low_min", Average::kLowestRow},    {kHigh, "clip_ratio/high_mean", Average::kRows},
      {kHigh, "clip_ratio/high_max", Average::kHighestRow}, {kLow, "clip_ratio/region_mean", Average::kRows, kHigh},
      {kRatio, "actor/ratio_min", Average::kLowest},        {kRatio, "actor/ratio_max", Average::kHighest},
  };

  template <class Real, class Meter>
  MORTISE_HD Real sequence(Real mean_log_ratio, double adv, Meter& meter) const {
    const Real s = exp(min(mean_log_ratio, max_log_ratio));
    const Real plain = -adv * clamp_max(s, cap);
    const Real clipped = -adv * clamp(s, low, high);
    const bool under = (s < low) & (adv < 0), over = (s > high) & (adv > 0);
    meter.count(kClipped, clipped > plain);
    meter.add(kKl, -mean_log_ratio);
    meter.add(kNone, 0.0);
    meter.count(kLow, under);
    meter.count(kHigh, over);
    meter.add(kRatio, s);
    return max(plain, clipped);
  }
};

}  // namespace mortise
