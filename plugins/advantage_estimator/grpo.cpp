// grpo: the reward relative to its group (Group Relative Policy Optimization, arXiv:2402.03300; without the division by
// the deviation: Dr. GRPO, arXiv:2503.20783).
//
//   A = (R - mean) / (std + epsilon), std with n - 1; with norm_adv_by_std_in_grpo = false: A = R - mean.
// A prompt sampled once has nothing to be compared with: mean 0, std 1, as in verl. Where only one row of a larger
// group has a reward, A = 0, as in TRL. Sums are in double: equal rewards give exactly 0.
#include <mortise/cpp/mortise.hpp>

namespace {

struct Grpo : mortise::OutcomeEstimator {
  static constexpr const char* summary = "reward minus the group's mean, over its standard deviation (GRPO)";
  static constexpr const char* doc = "A = (R - mean_g) / (std_g + epsilon), std with n-1. arXiv:2402.03300, 2503.20783";

  bool norm_adv_by_std_in_grpo =
      param("norm_adv_by_std_in_grpo", true, "divide by the group's standard deviation; false: Dr. GRPO");
  double epsilon = param("epsilon", 1e-6, "added to the standard deviation; TRL uses 1e-4").at_least(0);

  void group(const mortise::Group& g, mortise::Span<double> advantages) const override {
    const std::int64_t n = g.rewards.size();
    if (n == 1) {
      const double alone = norm_adv_by_std_in_grpo ? g.rewards[0] / (1 + epsilon) : g.rewards[0];
      advantages[0] = g.num_rows == 1 ? alone : 0.0;
      return;
    }
    double mean = 0;
    for (const double r : g.rewards) mean += r - g.rewards[0];
    mean = g.rewards[0] + mean / double(n);
    double square = 0;
    for (const double r : g.rewards) square += (r - mean) * (r - mean);
    const double scale = norm_adv_by_std_in_grpo ? std::sqrt(square / double(n - 1)) + epsilon : 1.0;
    for (std::int64_t i = 0; i < n; ++i) {
      const double centred = g.rewards[i] - mean;
      advantages[i] = centred == 0 ? 0.0 : centred / scale;
    }
  }
};

}  // namespace

MORTISE_ADVANTAGE_ESTIMATOR("grpo", Grpo)
