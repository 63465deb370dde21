// k3, also named low_var_kl: exp(d) - d - 1 with d = ref_log_prob - log_prob. Unbiased, low variance, never negative.
// J. Schulman, "Approximating KL divergence", joschu.net/blog/kl-approx.html. The default clamps are verl's and
// ms-swift's: d at 20, the estimate at 10. Trap: TRL has no clamps (max_log_ratio = max_kl = inf), and beyond a clamp
// no gradient brings the policy back.
#include <mortise/cpp/mortise.hpp>

#include "../shared/kl_clamp.h"

namespace {

struct K3 : mortise::ClampedKl {
  static constexpr const char* summary = "log ratio with a control variate: unbiased, low variance, never negative";
  static constexpr const char* doc =
      "exp(d) - d - 1 with d = clamp(ref_log_prob - log_prob), the result clamped too. J. Schulman, "
      "joschu.net/blog/kl-approx.html";
  static constexpr std::uint32_t flags = MORTISE_FLAG_CONCURRENT;

  K3() : ClampedKl(20.0, 10.0) {}

  template <class Real>
  MORTISE_HD Real token(Real logp, double ref) const {
    const Real d = bounded_ratio(ref - logp);
    return bounded(exp(d) - d - 1.0);
  }
};

}  // namespace

MORTISE_KL_ESTIMATOR("k3", K3)
MORTISE_KL_ESTIMATOR("low_var_kl", K3)
