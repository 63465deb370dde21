// dppo_kl: DPPO with the binary KL divergence (arXiv:2602.04879); see dppo.h for the loss.
//
//   p = exp(log_prob), p_old = exp(old_log_prob),
//   KL = p_old (old_log_prob - log_prob) + (1 - p_old) log((1 - p_old + 1e-8) / (1 - p + 1e-8));
//   keep where A > 0: KL <= high or p <= p_old;  else KL <= low or p >= p_old.
// Default thresholds 0.2, as in verl. Trap: a KL of 0.2 is a far wider band than a total variation of 0.2.
#include "dppo.h"

namespace {

struct DppoKl : mortise::Dppo {
  static constexpr const char* summary = "policy gradient that drops tokens by binary KL (DPPO-Binary-KL)";
  static constexpr const char* doc =
      "L = -A sg(min(r, clip_ratio_c)) log_prob where A > 0: KL <= high or p <= p_old, else KL <= low or p >= p_old; 0 "
      "elsewhere; KL of {token, any other}. arXiv:2602.04879";

  template <class Real, class Number, class Meter>
  MORTISE_HD MORTISE_INLINE Real token(Real logp, Number old_logp, Number adv, Meter& meter) const {
    const Number lp = value_of(logp), p = exp(lp), p_old = exp(old_logp);
    const Number kl = p_old * (old_logp - lp) + (1.0 - p_old) * log((1.0 - p_old + 1e-8) / (1.0 - p + 1e-8));
    const bool rising = (kl <= high) | (p <= p_old), falling = (kl <= low) | (p >= p_old);
    return kept_part(logp, old_logp, adv, adv > 0 ? rising : falling, meter);
  }
};

}  // namespace

MORTISE_TOKEN_LOSS("dppo_kl", DppoKl)
