// sapo_sequence: sapo with one ratio for the whole row (TRL's and ms-swift's loss_type sapo at importance_sampling_level
// sequence).
//
//   s = exp(clamp(mean over the row of log_prob - old_log_prob, -20, 20)),  L = -A (4/tau) sigmoid(tau (s - 1)),
//   tau = tau_pos where A > 0, else tau_neg.
// The gradient is the derivative of s, 1/n to each of the row's n tokens. Defaults and aggregation as in sapo, which has
// the ratio of each token as in its paper.
#include "sapo.h"

namespace {

struct SapoSequence : mortise::SapoGate<mortise::SequenceLoss> {
  static constexpr const char* summary = "SAPO with the ratio of the whole row";
  static constexpr const char* doc =
      "s = exp(mean of log_prob - old_log_prob over the row); L = -A (4/tau) sigmoid(tau (s - 1)), tau = tau_pos where "
      "A > 0 else tau_neg. arXiv:2511.20347 with the ratio of arXiv:2507.18071";

  template <class Real, class Meter>
  MORTISE_HD Real sequence(Real mean_log_ratio, double adv, Meter& meter) const {
    const double tau = adv > 0 ? tau_pos : tau_neg;
    meter.add(kNone, 0.0);
    meter.add(kKl, -mean_log_ratio);
    return -adv * (4.0 / tau) * sigmoid(tau * (exp(clamp(mean_log_ratio, -20.0, 20.0)) - 1.0));
  }
};

}  // namespace

MORTISE_SEQUENCE_LOSS("sapo_sequence", SapoSequence)
