// dro: direct reward optimisation (arXiv:2405.19107) as in verl: the policy gradient with a quadratic pull towards the
// old policy.
//
//   D = log_prob - old_log_prob,  L = -(A log_prob - beta/2 D^2). No clip, no clamp.
// dro_beta has no default, as in verl. Trap: the paper fits a value function as well as the policy; here the advantage
// estimator replaces it.
#include <mortise/cpp/mortise.hpp>

namespace {

struct Dro : mortise::TokenLoss {
  static constexpr const char* summary = "policy gradient with a quadratic penalty of the log ratio (DRO)";
  static constexpr const char* doc =
      "D = log_prob - old_log_prob; L = -(A log_prob - dro_beta/2 D^2). arXiv:2405.19107";
  static constexpr std::uint32_t flags = MORTISE_FLAG_CONCURRENT;
  static constexpr bool accepts_cuda = true;

  double dro_beta = param<double>("dro_beta", mortise::required, "strength of the quadratic penalty").above(0);

  enum { kKl };
  static constexpr mortise::Metric metrics[] = {{kKl, "actor/ppo_kl", mortise::Average::kTokens}};

  template <class Real, class Number, class Meter>
  MORTISE_HD Real token(Real logp, Number old_logp, Number adv, Meter& meter) const {
    const Real log_ratio = logp - old_logp;
    meter.add(kKl, -log_ratio);
    return -(adv * logp - (0.5 * dro_beta) * (log_ratio * log_ratio));
  }
};

}  // namespace

MORTISE_TOKEN_LOSS("dro", Dro)
