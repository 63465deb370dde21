// gspo: clipped surrogate of the sequence's ratio (Group Sequence Policy Optimization, arXiv:2507.18071).
//
//   s = exp(mean over the row of log_prob - old_log_prob),  loss of each token = max(-A s, -A clamp(s, 1-low, 1+high)).
// The gradient is that of the token form lp - sg(lp) + sg(mean): each token's own, not divided by the length, so that
// tokens keep their own advantage and weight. The log ratio is capped at 10 from above, as in verl. The paper
// aggregates by seq-mean-token-mean and clips at 3e-4 / 4e-4; aggregation is the engine's, and the edges are
// clip_ratio_low/high.
#include <mortise/cpp/mortise.hpp>

#include "../shared/clip.h"

namespace {

struct Gspo : mortise::SequenceLoss {
  static constexpr const char* summary = "clipped surrogate of the sequence-level ratio (GSPO)";
  static constexpr const char* doc =
      "s = exp(mean of log_prob - old_log_prob over the row); L = max(-A s, -A clamp(s, 1-low, 1+high)). "
      "arXiv:2507.18071; aggregate with seq-mean-token-mean";
  static constexpr std::uint32_t flags = MORTISE_FLAG_CONCURRENT | MORTISE_FLAG_SURROGATE_GRADIENT;
  static constexpr Gradient gradient = Gradient::kOwnToken;

  double clip_ratio = param("clip_ratio", 0.2, "half width of the trust band of the sequence ratio").at_least(0);
  double clip_ratio_low =
      param("clip_ratio_low", mortise::none, "lower half width (paper: 3e-4); not set: clip_ratio").range(0, 1);
  double clip_ratio_high =
      param("clip_ratio_high", mortise::none, "upper half width (paper: 4e-4); not set: clip_ratio").at_least(0);
  double low = 0, high = 0;

  void setup(mortise::Call) override {
    low = 1 - mortise::first_set(clip_ratio_low, clip_ratio);
    high = 1 + mortise::first_set(clip_ratio_high, clip_ratio);
  }

  enum { kClipped, kKl, kNone, kLow, kHigh, kRegion, kRatio };
  static constexpr mortise::Metric metrics[] = {
      {kClipped, "actor/pg_clipfrac", mortise::Average::kTokens},
      {kKl, "actor/ppo_kl", mortise::Average::kTokens},
      {kNone, "actor/pg_clipfrac_lower", mortise::Average::kTokens},
      {kLow, "clip_ratio/low_mean", mortise::Average::kRows},
      {kLow, "clip_ratio/low_min", mortise::Average::kLowestRow},
      {kHigh, "clip_ratio/high_mean", mortise::Average::kRows},
      {kHigh, "clip_ratio/high_max", mortise::Average::kHighestRow},
      {kRegion, "clip_ratio/region_mean", mortise::Average::kRows},
      {kRatio, "actor/ratio_min", mortise::Average::kLowest},
      {kRatio, "actor/ratio_max", mortise::Average::kHighest},
  };

  template <class Real, class Meter>
  Real sequence(Real mean_log_ratio, double adv, Meter& meter) const {
    const Real s = exp(min(mean_log_ratio, 10.0));
    const Real plain = -adv * s;
    const Real clipped = -adv * clamp(s, low, high);
    const bool under = (s < low) & (adv < 0), over = (s > high) & (adv > 0);
    meter.count(kClipped, clipped > plain);
    meter.add(kKl, -mean_log_ratio);
    meter.add(kNone, 0.0);
    meter.count(kLow, under);
    meter.count(kHigh, over);
    meter.count(kRegion, under | over);
    meter.add(kRatio, s);
    return max(plain, clipped);
  }
};

}  // namespace

MORTISE_SEQUENCE_LOSS("gspo", Gspo)
