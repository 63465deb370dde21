// decoupled: PPO with three policies (Hilton et al., arXiv:2110.00641; AReaL, arXiv:2505.24298): the sampler mu, the
// proximal policy that the update stays near, and the policy pi.
//
//   u = exp(clamp(log_prob - old_log_prob, +-20)),  b = exp(clamp(old_log_prob - rollout_log_prob, +-20)),
//   L = b max(-A u, -A clamp(u, 1 - low, 1 + high)),  0 where b > behav_imp_weight_cap.
// old_log_prob is the proximal policy: the engine computes it before the batch's first update. b is the correction of
// the rollout, which this loss applies instead of the engine. There is no cap by default, as in the papers. AReaL drops
// tokens beyond its cap; it does not cut their weight.
#include <limits>

#include <mortise/cpp/mortise.hpp>

#include "../shared/clip.h"

namespace {

struct Decoupled : mortise::Clipped<mortise::RolloutLoss> {
  static constexpr const char* summary = "PPO clipped around a proximal policy, weighted from the sampler to it";
  static constexpr const char* doc =
      "u = pi/pi_old, b = pi_old/mu with mu the sampler; L = b max(-A u, -A clamp(u, 1-low, 1+high)). "
      "arXiv:2110.00641, 2505.24298";
  static constexpr std::uint32_t flags = MORTISE_FLAG_CONCURRENT;
  static constexpr bool accepts_cuda = true;
  static constexpr const char* consumes[] = {"rollout_is_weights", nullptr};

  double behav_imp_weight_cap = param("behav_imp_weight_cap", mortise::none,
                                      "tokens whose weight pi_old/mu is above this are dropped; not set: none")
                                    .at_least(0);

  void setup(mortise::Call call) override {
    Clipped::setup(call);
    behav_imp_weight_cap = mortise::first_set(behav_imp_weight_cap, std::numeric_limits<double>::infinity());
  }

  enum { kClipped, kKl, kBehaviour, kDropped };
  static constexpr mortise::Metric metrics[] = {
      {kClipped, "actor/pg_clipfrac", mortise::Average::kTokens},
      {kKl, "actor/ppo_kl", mortise::Average::kTokens},
      {kBehaviour, "decoupled/behav_weight_mean", mortise::Average::kTokens},
      {kDropped, "decoupled/dropped_frac", mortise::Average::kTokens},
  };

  template <class Real, class Number, class Meter>
  MORTISE_HD Real token(Real logp, Number old_logp, Number rollout_logp, Number adv, Meter& meter) const {
    const Real log_ratio = clamp(logp - old_logp, -20.0, 20.0);
    const Real u = exp_inside(log_ratio);
    const Number distance = old_logp - rollout_logp;
    const Number behaviour = exp_inside(select(distance > 20.0, 20.0, select(distance < -20.0, -20.0, distance)));
    const bool dropped = behaviour > behav_imp_weight_cap;
    const Real plain = -adv * u;
    const Real clipped = -adv * clamp(u, low, high);
    meter.count(kClipped, clipped > plain);
    meter.add(kKl, -log_ratio);
    meter.add(kBehaviour, behaviour);
    meter.count(kDropped, dropped);
    return select(dropped, 0.0, behaviour) * max(plain, clipped);
  }
};

}  // namespace

MORTISE_ROLLOUT_LOSS("decoupled", Decoupled)
