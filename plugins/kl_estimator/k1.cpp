// k1, also named kl: log_prob - ref_log_prob. Unbiased, high variance, may be negative. Clamps: off.
// J. Schulman, "Approximating KL divergence", joschu.net/blog/kl-approx.html.
// Trap: as a loss term its expected gradient is zero on-policy; use k1+ (gradient of k2) or k2 there.
#include <mortise/cpp/mortise.hpp>

#include "../shared/kl_clamp.h"

namespace {

struct K1 : mortise::ClampedKl {
  static constexpr const char* summary = "log ratio: unbiased, high variance";
  static constexpr const char* doc = "log_prob - ref_log_prob. J. Schulman, joschu.net/blog/kl-approx.html";
  static constexpr std::uint32_t flags = MORTISE_FLAG_CONCURRENT;

  template <class Real>
  MORTISE_HD Real token(Real logp, double ref) const {
    return bounded(bounded_ratio(logp - ref));
  }
};

}  // namespace

MORTISE_KL_ESTIMATOR("k1", K1)
MORTISE_KL_ESTIMATOR("kl", K1)
