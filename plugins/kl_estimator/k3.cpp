// k3, also named low_var_kl: exp(d) - d - 1 with d = ref_log_prob - log_prob. Unbiased, low variance, never negative.
// J. Schulman, "Approximating KL divergence", joschu.net/blog/kl-approx.html. The two clamps are verl's; the gradient
// is 0 beyond them.
#include <mortise/cpp/mortise.hpp>

namespace {

struct K3 : mortise::KlEstimator {
  static constexpr const char* summary = "exp(d) - d - 1: unbiased, low variance, never negative";
  static constexpr const char* doc = "exp(d) - d - 1 with d = clamp(ref_log_prob - log_prob), the result clamped too";
  static constexpr std::uint32_t flags = MORTISE_FLAG_CONCURRENT;

  double max_log_ratio = param("max_log_ratio", 20.0, "d is clamped to +- this; inf: not at all").at_least(0);
  double max_kl = param("max_kl", 10.0, "a token's estimate is clamped to +- this; inf: not at all").at_least(0);

  void setup(mortise::Call) override {
    const double infinity = std::numeric_limits<double>::infinity();
    if (!mortise::is_set(max_log_ratio)) max_log_ratio = infinity;
    if (!mortise::is_set(max_kl)) max_kl = infinity;
  }

  template <class Real>
  Real token(Real logp, double ref) const {
    const Real d = clamp(ref - logp, -max_log_ratio, max_log_ratio);
    return clamp(exp(d) - d - 1.0, -max_kl, max_kl);
  }
};

}  // namespace

MORTISE_KL_ESTIMATOR("k3", K3)
MORTISE_KL_ESTIMATOR("low_var_kl", K3)
