// kl_cov: a penalty of the log ratio on the tokens that drive the entropy down (arXiv:2505.22617, KL-Cov).
//
//   D = log_prob - old_log_prob,  cov = (A - mean A) (log_prob - mean log_prob) over the update's unmasked tokens,
//   L = -A exp(D), and + ppo_kl_coef |D| on the max(1, int(kl_cov_ratio N)) tokens of the largest cov. No clip.
// The choice is a constant for the gradient; of equal tokens the first by the rows' names. Defaults 2e-4 and 0.1 as in
// verl's configuration files (1.0 where its code runs without one). Traps: verl chooses in each micro-batch, here it is
// the whole update, as the paper says; verl does not clamp D, here the ratio's is clamped to +-20.
#include <algorithm>
#include <cstdint>

#include <mortise/cpp/mortise.hpp>

#include "token_covariance.h"

namespace {

struct KlCov : mortise::ContextLoss {
  static constexpr const char* summary =
      "unclipped surrogate, with a KL penalty on the tokens of largest covariance (KL-Cov)";
  static constexpr const char* doc =
      "L = -A exp(D), D = log_prob - old_log_prob; + ppo_kl_coef |D| on the share kl_cov_ratio of tokens with the "
      "largest (A - mean A)(log_prob - mean log_prob) of the update. arXiv:2505.22617";
  static constexpr std::uint32_t flags = MORTISE_FLAG_CONCURRENT;
  static constexpr bool accepts_cuda = true;
  static constexpr std::int32_t coupling = MORTISE_COUPLING_UPDATE;

  double kl_cov_ratio = param("kl_cov_ratio", 2e-4, "share of the tokens that get the penalty").above(0).at_most(1);
  double ppo_kl_coef = param("ppo_kl_coef", 0.1, "coefficient of the penalty |D|").at_least(0);

  struct LargestFirst {
    mortise::TokenCovariance covariance;
    MORTISE_HD std::uint64_t operator()(const mortise::TokenColumns& in, std::int64_t t,
                                        const mortise::RowToken&) const {
      return mortise::falling_key(covariance(in, t));
    }
  };

  // 1 at the chosen tokens.
  template <class Passes>
  void context(const Passes& passes, const mortise::Call&) const {
    const mortise::UpdateSums all = mortise::UpdateSums::of(passes);
    mortise::Choice choice;
    choice.budget = std::max<std::int64_t>(1, std::int64_t(all.tokens * kl_cov_ratio));
    passes.set_chosen(LargestFirst{all.covariance()}, mortise::CostsOne{}, choice);
  }

  enum { kKl };
  static constexpr mortise::Metric metrics[] = {{kKl, "actor/ppo_kl", mortise::Average::kTokens}};

  template <class Real, class Meter>
  MORTISE_HD Real token(Real logp, double old_logp, double adv, double chosen, Meter& meter) const {
    const Real distance = abs(logp - old_logp);
    meter.add(kKl, distance);
    return -adv * exp(clamp(logp - old_logp, -20.0, 20.0)) + (ppo_kl_coef * chosen) * distance;
  }
};

}  // namespace

MORTISE_CONTEXT_LOSS("kl_cov", KlCov)
