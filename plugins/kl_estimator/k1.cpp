// k1, also named kl: log_prob - ref_log_prob. Unbiased, high variance, may be negative.
// J. Schulman, "Approximating KL divergence", joschu.net/blog/kl-approx.html.
#include <mortise/cpp/mortise.hpp>

namespace {

struct K1 : mortise::KlEstimator {
  static constexpr const char* summary = "log ratio: unbiased, high variance";
  static constexpr const char* doc = "log_prob - ref_log_prob";
  static constexpr std::uint32_t flags = MORTISE_FLAG_CONCURRENT;

  template <class Real>
  Real token(Real logp, double ref) const {
    return logp - ref;
  }
};

}  // namespace

MORTISE_KL_ESTIMATOR("k1", K1)
MORTISE_KL_ESTIMATOR("kl", K1)
