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

  template <class Real, class Number, class Meter>
  MORTISE_HD MORTISE_INLINE Real token(Real logp, Number old_logp, Number adv, Meter& meter) const {
    const Number moved = value_of(exp(logp)) - exp(old_logp);
    return kept_part(logp, old_logp, adv, adv > 0 ? moved <= high : moved >= -low, meter);
  }
};

}  // namespace

MORTISE_TOKEN_LOSS("dppo_tv", DppoTv)
