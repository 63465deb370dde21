// k2, also named mse: half the squared log ratio. Biased, low variance, with the right gradient in expectation. Clamps:
// off. J. Schulman, "Approximating KL divergence", joschu.net/blog/kl-approx.html.
#include <mortise/cpp/mortise.hpp>

#include "../shared/kl_clamp.h"

namespace {

struct K2 : mortise::ClampedKl {
  static constexpr const char* summary = "half the squared log ratio: biased, low variance";
  static constexpr const char* doc = "(log_prob - ref_log_prob)^2 / 2. J. Schulman, joschu.net/blog/kl-approx.html";
  static constexpr std::uint32_t flags = MORTISE_FLAG_CONCURRENT;

  template <class Real>
  MORTISE_HD Real token(Real logp, double ref) const {
    const Real x = bounded_ratio(logp - ref);
    return bounded(0.5 * (x * x));
  }
};

}  // namespace

MORTISE_KL_ESTIMATOR("k2", K2)
MORTISE_KL_ESTIMATOR("mse", K2)
