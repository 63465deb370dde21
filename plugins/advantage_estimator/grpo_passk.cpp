// grpo_passk: only the best row of a group learns, from its lead over the second best (pass@k training,
// arXiv:2503.19595).
//
//   A = (R_max - R_second) / (std_g + epsilon) for the best row, 0 for the others; std with n - 1.
//   norm_adv_by_std_in_grpo = false: A = R_max - R_second.
// If the best rows are equal, all get 0. A prompt sampled once gets 0 (verl refuses it).
// Traps: advantages are never negative and do not sum to 0. With 0/1 rewards a group learns only if exactly one row is
// right.
#include <mortise/cpp/advantage.hpp>

#include "../shared/groups.h"

namespace {

struct GrpoPassK : mortise::OutcomeEstimator {
  static constexpr const char* summary = "lead of a group's best row over its second best (pass@k)";
  static constexpr const char* doc =
      "A = (R_max - R_second) / (std_g + epsilon) for the best row, else 0. arXiv:2503.19595";

  bool norm_adv_by_std_in_grpo =
      param("norm_adv_by_std_in_grpo", true, "divide by the group's standard deviation (n - 1)");
  double epsilon = param("epsilon", 1e-6, "added to the standard deviation").at_least(0);

  void group(const mortise::Group& g, mortise::Span<double> advantages) const override {
    if (g.rewards.size() < 2) return;
    std::int64_t best = 0;
    double second = -std::numeric_limits<double>::infinity();
    for (std::int64_t i = 1; i < g.rewards.size(); ++i) {
      if (g.rewards[i] > g.rewards[best]) {
        second = g.rewards[best];
        best = i;
      } else if (g.rewards[i] > second) {
        second = g.rewards[i];
      }
    }
    const double scale = norm_adv_by_std_in_grpo ? std::sqrt(mortise::variance_of(g.rewards, 1)) + epsilon : 1.0;
    advantages[best] = mortise::scaled(g.rewards[best] - second, scale);
  }
};

}  // namespace

MORTISE_ADVANTAGE_ESTIMATOR("grpo_passk", GrpoPassK)
