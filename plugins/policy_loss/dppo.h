// What dppo_tv and dppo_kl share (arXiv:2602.04879): a token is dropped where the policy has moved too far from the old
// one in the direction of its advantage, by a divergence of the two-outcome distribution {this token, any other}.
//
//   r = exp(clamp(log_prob - old_log_prob, -20, 20)),  L = -A sg(min(r, c)) log_prob keep,  keep in {0, 1}.
// verl's parameter names: clip_ratio* are thresholds of the divergence here, and clip_ratio_c is the cap of the ratio.
// Its default is the 3 of verl's actor configuration, which verl's function gets before its own fallback of 20. Trap: 3
// cuts rare tokens that grow; verl's own runs (examples/dppo_trainer) set clip_ratio_c 10000, thresholds 0.15 for tv
// and 0.05 for kl, aggregation seq-mean-token-sum-norm, advantages without std. 0 means none, as everywhere. The old
// policy is the sampler's in verl's bypass mode.
#pragma once

#include <limits>

#include <mortise/cpp/mortise.hpp>

#include "../shared/clip.h"

namespace mortise {

struct Dppo : TokenLoss {
  static constexpr std::uint32_t flags = MORTISE_FLAG_CONCURRENT | MORTISE_FLAG_SURROGATE_GRADIENT;
  static constexpr bool accepts_cuda = true;

  double clip_ratio = param("clip_ratio", 0.2, "threshold of the divergence, delta").at_least(0);
  double clip_ratio_low = param("clip_ratio_low", none, "threshold where A <= 0; not set: clip_ratio").at_least(0);
  double clip_ratio_high = param("clip_ratio_high", none, "threshold where A > 0; not set: clip_ratio").at_least(0);
  double clip_ratio_c = param("clip_ratio_c", 3.0, "cap of the ratio; 0: none (verl's run files: 10000)").at_least(0);
  double low = 0, high = 0;

  void setup(Call) override {
    low = first_set(clip_ratio_low, clip_ratio);
    high = first_set(clip_ratio_high, clip_ratio);
    if (clip_ratio_c == 0) clip_ratio_c = std::numeric_limits<double>::infinity();
  }

  enum { kDropped, kKl, kCapped };
  static constexpr Metric metrics[] = {
      {kDropped, "actor/pg_clipfrac", Average::kTokens},
      {kKl, "actor/ppo_kl", Average::kTokens},
      {kCapped, "actor/pg_clipfrac_lower", Average::kTokens},
  };

  // `kept` is a bool, so ?: may choose it without a branch (the loop stays SIMD). It multiplies the log-prob, so that a
  // NaN shows.
  template <class Real, class Number, class Meter>
  MORTISE_HD MORTISE_INLINE Real kept_part(Real logp, Number old_logp, Number adv, bool kept, Meter& meter) const {
    const Number keep = select(kept, Number(1.0), Number(0.0));
    const Real log_ratio = clamp(logp - old_logp, -20.0, 20.0);
    const Real r = exp_inside(log_ratio);
    const Number weight = value_of(clamp_max(r, clip_ratio_c));
    meter.add(kDropped, 1.0 - keep);
    meter.add(kKl, -log_ratio);
    meter.add(kCapped, select(r > clip_ratio_c, keep, 0.0));
    return (-adv * weight * keep) * logp;
  }
};

}  // namespace mortise
