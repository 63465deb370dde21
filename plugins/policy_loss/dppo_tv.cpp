// dppo_tv: DPPO with the binary total variation (arXiv:2602.04879); see dppo.h for the loss.
//
//   p = exp(log_prob), p_old = exp(old_log_prob):  keep where A > 0: p - p_old <= high;  else p - p_old >= -low.
// Default thresholds 0.2. Trap: they bound probabilities, not ratios: rare tokens may grow by any factor.
#include "dppo.h"

namespace {

struct DppoTv : mortise::Dppo {
  static constexpr const char* summary = "policy gradient that drops tokens by total variation (DPPO-Binary-TV)";
  static constexpr const char* doc =
      "L = -A sg(min(r, clip_ratio_c)) log_prob where A > 0: p - p_old <= high, else p - p_old >= -low; 0 elsewhere. "
      "arXiv:2602.04879";

  template <class Real, class Meter>
  MORTISE_INLINE Real token(Real logp, double old_logp, double adv, Meter& meter) const {
    const double moved = value_of(exp(logp)) - mortise::detail::exp_of(old_logp);
    const double keep = select(adv > 0, select(moved <= high, 1.0, 0.0), select(moved >= -low, 1.0, 0.0));
    return kept_part(logp, old_logp, adv, keep, meter);
  }
};

}  // namespace

MORTISE_TOKEN_LOSS("dppo_tv", DppoTv)
