// kl_cov: a penalty of the log ratio on the tokens that drive the entropy down (arXiv:2505.22617, KL-Cov).
//
//   D = log_prob - old_log_prob,  cov = (A - mean A) (log_prob - mean log_prob) over the update's unmasked tokens,
//   L = -A exp(D), and + ppo_kl_coef |D| on the max(1, int(kl_cov_ratio N)) tokens of the largest cov. No clip.
// The choice is a constant for the gradient; of equal tokens the first by the rows' names. Defaults 2e-4 and 0.1 as in
// verl's configuration files (1.0 where its code runs without one). Traps: verl chooses in each micro-batch, here it is
// the whole update, as the paper says; verl does not clamp D, here the ratio's is clamped to +-20.
#include <algorithm>
#include <cmath>

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

  // 1 at the chosen tokens.
  template <class Passes>
  void context(const Passes& passes, const mortise::Call&) const {
    // TokenCovariance is never NaN, so NaN marks the masked tokens.
    const std::vector<double> covariance =
        passes.values(mortise::UpdateSums::of(passes).covariance(), mortise::detail::kNaN);
    std::vector<double> largest, chosen(covariance.size());
    largest.reserve(covariance.size());
    for (const double cov : covariance) {
      if (!std::isnan(cov)) largest.push_back(cov);
    }
    if (largest.empty()) return;  // no unmasked token needs a number
    const auto count = std::max<std::int64_t>(1, std::int64_t(double(largest.size()) * kl_cov_ratio));
    const auto last = largest.begin() + (count - 1);
    std::nth_element(largest.begin(), last, largest.end(), std::greater<>());
    const double threshold = *last;
    std::int64_t at_threshold = count - (std::count_if(largest.begin(), last, [&](double x) { return x > threshold; }));
    passes.by_name([&](std::size_t, std::size_t t) {
      const double cov = covariance[t];
      if (cov > threshold || (cov == threshold && at_threshold-- > 0)) chosen[t] = 1.0;
    });
    passes.set_numbers(std::move(chosen));
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
