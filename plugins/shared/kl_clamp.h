// The two clamps that every KL estimator offers, with the gradient 0 beyond them, as in verl.
#pragma once

#include <limits>

#include <mortise/cpp/losses.hpp>

namespace mortise {

struct KlClamps {
  double max_log_ratio, max_kl;

  template <class Real>
  MORTISE_HD Real bounded_ratio(Real log_ratio) const {
    return clamp(log_ratio, -max_log_ratio, max_log_ratio);
  }
  template <class Real>
  MORTISE_HD Real bounded(Real kl) const {
    return clamp(kl, -max_kl, max_kl);
  }
};

struct ClampedKl : KlEstimator {
  static constexpr bool accepts_cuda = true;

  ClampedKl(double log_ratio, double kl)
      : max_log_ratio(
            param("max_log_ratio", log_ratio, "clamp of the log ratio, +- this value; inf: none").at_least(0)),
        max_kl(param("max_kl", kl, "clamp of a token's estimate, +- this value; inf: none").at_least(0)) {}
  ClampedKl() : ClampedKl(std::numeric_limits<double>::quiet_NaN(), std::numeric_limits<double>::quiet_NaN()) {}

  void setup(Call) override {
    const double infinity = std::numeric_limits<double>::infinity();
    if (!is_set(max_log_ratio)) max_log_ratio = infinity;
    if (!is_set(max_kl)) max_kl = infinity;
  }
  MORTISE_HD KlClamps clamps() const { return {max_log_ratio, max_kl}; }
  template <class Real>
  MORTISE_HD Real bounded_ratio(Real log_ratio) const {
    return clamps().bounded_ratio(log_ratio);
  }
  template <class Real>
  MORTISE_HD Real bounded(Real kl) const {
    return clamps().bounded(kl);
  }

  double max_log_ratio, max_kl;
};

}  // namespace mortise
