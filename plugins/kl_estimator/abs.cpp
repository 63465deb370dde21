// abs: the size of the log ratio. Not an estimate of KL, but a penalty that verl offers under kl_loss_type. Clamps:
// off.
#include <mortise/cpp/mortise.hpp>

#include "../shared/kl_clamp.h"

namespace {

struct Abs : mortise::ClampedKl {
  static constexpr const char* summary = "absolute log ratio";
  static constexpr const char* doc = "|log_prob - ref_log_prob|. verl's kl_loss_type abs";
  static constexpr std::uint32_t flags = MORTISE_FLAG_CONCURRENT;

  template <class Real>
  MORTISE_HD Real token(Real logp, double ref) const {
    return bounded(abs(bounded_ratio(logp - ref)));
  }
};

}  // namespace

MORTISE_KL_ESTIMATOR("abs", Abs)
