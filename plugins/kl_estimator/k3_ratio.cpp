// k3_ratio: k3 times the importance ratio, r (exp(d) - d - 1) with r = exp(log_prob - old_log_prob) and
// d = ref_log_prob - log_prob; the gradient flows through r too, which makes it that of the KL off-policy as well.
// DeepSeek-V3.2, arXiv:2512.02556 ("unbiased KL estimate"); TRL: use_bias_correction_kl. The estimate is clamped before
// it is multiplied, the log ratio of r to +-20. TRL multiplies by the row's ratio at sequence level: see
// k3_row_ratio. TRL has no clamps of d and k3: max_log_ratio = max_kl = inf.
#include <mortise/cpp/mortise.hpp>

#include "../shared/kl_clamp.h"

namespace {

struct K3Ratio : mortise::ClampedKl {
  static constexpr const char* summary = "importance ratio times k3: unbiased off-policy, in value and gradient";
  static constexpr const char* doc =
      "r (exp(d) - d - 1), r = exp(log_prob - old_log_prob), d = ref_log_prob - log_prob. arXiv:2512.02556";
  static constexpr std::uint32_t flags = MORTISE_FLAG_CONCURRENT;
  static constexpr const char* requires_inputs[] = {"old_log_prob", nullptr};

  K3Ratio() : ClampedKl(20.0, 10.0) {}

  template <class Real>
  MORTISE_HD Real token(Real logp, double ref, double old_logp) const {
    const Real r = exp(clamp(logp - old_logp, -20.0, 20.0));
    const Real d = bounded_ratio(ref - logp);
    return r * bounded(exp(d) - d - 1.0);
  }
};

}  // namespace

MORTISE_KL_ESTIMATOR("k3_ratio", K3Ratio)
