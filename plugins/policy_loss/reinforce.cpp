// reinforce: the policy gradient (Williams 1992; for language models arXiv:2402.14740, RLOO, and 2310.10505, ReMax).
//
//   L = -A log_prob. Importance weights of the rollout correction come on top of it, from the engine (verl's bypass
//   mode with loss_type "reinforce"). Without them it is right for one update per batch only.
// actor/ppo_kl is the mean of old_log_prob - log_prob, as in verl.
#include <mortise/cpp/mortise.hpp>

namespace {

struct Reinforce : mortise::TokenLoss {
  static constexpr const char* summary = "plain policy gradient; the engine applies importance weights";
  static constexpr const char* doc = "L = -A log_prob. Williams 1992; arXiv:2402.14740, 2310.10505";
  static constexpr std::uint32_t flags = MORTISE_FLAG_CONCURRENT;
  static constexpr bool accepts_cuda = true;

  enum { kKl };
  static constexpr mortise::Metric metrics[] = {{kKl, "actor/ppo_kl", mortise::Average::kTokens}};

  template <class Real, class Number, class Meter>
  MORTISE_HD Real token(Real logp, Number old_logp, Number adv, Meter& meter) const {
    meter.add(kKl, old_logp - logp);
    return -adv * logp;
  }
};

}  // namespace

MORTISE_TOKEN_LOSS("reinforce", Reinforce)
