// aipo: asynchronous importance-weighted policy optimization (LlamaRL, arXiv:2505.24034).
//
//   L = -sg(min(pi/mu, rho)) A log_prob,  pi/mu = exp(clamp(log_prob - rollout_log_prob, -20, 20)).
// mu is the sampler, whose log-probs this loss needs. The engine's rollout importance weights are the same correction
// and are not applied as well. The ratio is cut on one side only and has no gradient. rho is 2 by default, the lower
// end of cosmos-rl's suggestion for its aipo_rho, which has no default (2 to 10; checked there, not in the paper).
// Trap: with mu = old policy this is cispo with cap = rho.
#include <mortise/cpp/mortise.hpp>

namespace {

struct Aipo : mortise::RolloutLoss {
  static constexpr const char* summary = "log-prob weighted by the capped ratio to the sampler (AIPO)";
  static constexpr const char* doc = "L = -sg(min(pi/mu, rho)) A log_prob with mu the sampler. arXiv:2505.24034";
  static constexpr std::uint32_t flags = MORTISE_FLAG_CONCURRENT | MORTISE_FLAG_SURROGATE_GRADIENT;
  static constexpr bool accepts_cuda = true;
  static constexpr const char* consumes[] = {"rollout_is_weights", nullptr};

  double rho = param("rho", 2.0, "cap of the ratio to the sampler").at_least(0);

  enum { kCapped, kKl, kRatio };
  static constexpr mortise::Metric metrics[] = {
      {kCapped, "actor/pg_clipfrac", mortise::Average::kTokens},
      {kKl, "actor/ppo_kl", mortise::Average::kTokens},
      {kRatio, "aipo/ratio_mean", mortise::Average::kTokens},
  };

  template <class Real, class Number, class Meter>
  MORTISE_HD Real token(Real logp, Number old_logp, Number rollout_logp, Number adv, Meter& meter) const {
    const Real ratio = exp_inside(clamp(logp - rollout_logp, -20.0, 20.0));
    const Number weight = value_of(clamp_max(ratio, rho));
    meter.count(kCapped, ratio > rho);
    meter.add(kKl, old_logp - logp);
    meter.add(kRatio, ratio);
    return (-adv * weight) * logp;
  }
};

}  // namespace

MORTISE_ROLLOUT_LOSS("aipo", Aipo)
