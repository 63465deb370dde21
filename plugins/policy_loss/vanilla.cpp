// vanilla: PPO's clipped surrogate, with asymmetric edges, the dual clip and the two-sided clip.
//
//   r = exp(clamp(log_prob - old_log_prob, -20, 20)),  L = max(-A min(r, delta), -A clamp(r, 1 - low, 1 + high)),
//   and for A < 0: min(L, -A c).
// Papers: PPO arXiv:1707.06347, dual clip arXiv:1912.09729, asymmetric edges (DAPO) arXiv:2503.14476, delta
// (INTELLECT-2) arXiv:2505.07291. Defaults are verl's: 0.2, c = 3, no delta. TRL and ms-swift: clip_ratio_c = 0, and
// their delta, above 1 + high, is a dual clip with c = delta.
// Metrics carry verl's names (actor/*) and TRL's (clip_ratio/*); the latter differ where A = 0.
#include <mortise/cpp/mortise.hpp>

#include "../shared/clip.h"

namespace {

struct Vanilla : mortise::TokenLoss {
  static constexpr const char* summary = "PPO's clipped surrogate; asymmetric edges, dual clip, two-sided clip";
  static constexpr const char* doc =
      "r = exp(log_prob - old_log_prob); L = max(-A min(r, delta), -A clamp(r, 1-low, 1+high)); A < 0: min(L, -A c). "
      "arXiv:1707.06347, 1912.09729, 2503.14476, 2505.07291";
  static constexpr std::uint32_t flags = MORTISE_FLAG_CONCURRENT;
  static constexpr bool accepts_cuda = true;

  double clip_ratio = param("clip_ratio", 0.2, "half width of the trust band of the ratio, epsilon").at_least(0);
  double clip_ratio_low = param("clip_ratio_low", mortise::none, "lower half width; not set: clip_ratio").range(0, 1);
  double clip_ratio_high = param("clip_ratio_high", mortise::none, "upper half width; not set: clip_ratio").at_least(0);
  double clip_ratio_c =
      param("clip_ratio_c", 3.0, "dual clip: bound of the ratio where A < 0, above 1; 0: off").at_least(0);

  double delta =
      param("delta", mortise::none, "two-sided clip: cap of the ratio itself, above 1 + clip_ratio_high; not set: off")
          .at_least(0);

  double low = 0, high = 0, bound = 0, cap = 0;

  void setup(mortise::Call) override {
    low = 1 - mortise::first_set(clip_ratio_low, clip_ratio);
    high = 1 + mortise::first_set(clip_ratio_high, clip_ratio);
    const bool off = !mortise::is_set(clip_ratio_c) || clip_ratio_c == 0;
    if (!off && clip_ratio_c <= 1)
      mortise::fail(MORTISE_INVALID_ARGUMENT, "clip_ratio_c must be above 1, or 0 for off");
    cap = mortise::first_set(delta, std::numeric_limits<double>::infinity());
    bound = off ? std::numeric_limits<double>::infinity() : clip_ratio_c;
  }

  enum { kClipped, kKl, kClippedLower, kLow, kHigh, kRatio };
  static constexpr mortise::Metric metrics[] = {
      {kClipped, "actor/pg_clipfrac", mortise::Average::kTokens},
      {kKl, "actor/ppo_kl", mortise::Average::kTokens},
      {kClippedLower, "actor/pg_clipfrac_lower", mortise::Average::kTokens},
      {kLow, "clip_ratio/low_mean", mortise::Average::kTokens},
      {kLow, "clip_ratio/low_min", mortise::Average::kLowestRow},
      {kHigh, "clip_ratio/high_mean", mortise::Average::kTokens},
      {kHigh, "clip_ratio/high_max", mortise::Average::kHighestRow},
      {kLow, "clip_ratio/region_mean", mortise::Average::kTokens, kHigh},
      {kRatio, "actor/ratio_min", mortise::Average::kLowest},
      {kRatio, "actor/ratio_max", mortise::Average::kHighest},
  };

  template <class Real, class Number, class Meter>
  MORTISE_HD Real token(Real logp, Number old_logp, Number adv, Meter& meter) const {
    const Real log_ratio = clamp(logp - old_logp, -20.0, 20.0);
    const Real r = exp_inside(log_ratio);
    const Real plain = -adv * clamp_max(r, cap);
    const Real clipped = -adv * clamp(r, low, high);
    const Real loss = max(plain, clipped);
    // Infinite where the dual clip is off or A >= 0: no bound.
    const bool negative = adv < 0;
    const Number worst = select(negative, -adv * bound, std::numeric_limits<double>::infinity());

    const bool under = (r < low) & negative, over = (r > high) & (adv > 0);
    meter.count(kClipped, clipped > plain);
    meter.add(kKl, -log_ratio);
    meter.count(kClippedLower, loss > worst);
    meter.count(kLow, under);
    meter.count(kHigh, over);
    meter.add(kRatio, r);
    return min(loss, worst);
  }
};

}  // namespace

MORTISE_TOKEN_LOSS("vanilla", Vanilla)
