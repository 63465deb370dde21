// sapo: soft adaptive policy optimization (arXiv:2511.20347), a smooth gate instead of the clip.
//
//   r = exp(clamp(log_prob - old_log_prob, -20, 20)),  L = -A (4/tau) sigmoid(tau (r - 1)),
//   tau = tau_pos where A > 0, else tau_neg.
// The gate has slope 1 at r = 1 and fades on both sides, faster with a larger tau. Defaults are 1.0 / 1.05 as in the
// paper, verl, TRL and ms-swift. The default aggregation is seq-mean-token-mean. The clip fractions are 0, as in verl.
#include "sapo.h"

namespace {

struct Sapo : mortise::SapoGate<mortise::TokenLoss> {
  static constexpr const char* summary = "sigmoid gate of the ratio instead of the clip (SAPO)";
  static constexpr const char* doc =
      "r = exp(log_prob - old_log_prob); L = -A (4/tau) sigmoid(tau (r - 1)), tau = tau_pos where A > 0 else tau_neg. "
      "arXiv:2511.20347";

  template <class Real, class Number, class Meter>
  MORTISE_HD Real token(Real logp, Number old_logp, Number adv, Meter& meter) const {
    const Real log_ratio = clamp(logp - old_logp, -20.0, 20.0);
    const Number tau = select(adv > 0, tau_pos, tau_neg), height = select(adv > 0, 4.0 / tau_pos, 4.0 / tau_neg);
    meter.add(kNone, 0.0);
    meter.add(kKl, -log_ratio);
    return -adv * height * sigmoid(tau * (exp_inside(log_ratio) - 1.0));
  }
};

}  // namespace

MORTISE_TOKEN_LOSS("sapo", Sapo)
