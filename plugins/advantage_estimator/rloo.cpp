// rloo: the reward minus the mean of the other rows of the group (REINFORCE leave-one-out, arXiv:2402.14740).
//
//   A = R - (sum - R) / (n - 1), with n the rows of the group that have a reward.
// A prompt sampled once has baseline 0: A = R, as in verl. Where only one row of a larger group has a reward, A = 0.
#include <mortise/cpp/mortise.hpp>

namespace {

struct Rloo : mortise::OutcomeEstimator {
  static constexpr const char* summary = "reward minus the mean of the group's other rows (RLOO)";
  static constexpr const char* doc = "A = R - (sum_g - R) / (n - 1). arXiv:2402.14740";

  void group(const mortise::Group& g, mortise::Span<double> advantages) const override {
    const std::int64_t n = g.rewards.size();
    if (n == 1) {
      advantages[0] = g.num_rows == 1 ? g.rewards[0] : 0.0;
      return;
    }
    // Distances to the first reward: equal rewards leave exactly 0, whatever their size.
    double sum = 0;
    for (const double r : g.rewards) sum += r - g.rewards[0];
    for (std::int64_t i = 0; i < n; ++i) {
      const double own = g.rewards[i] - g.rewards[0];
      advantages[i] = own - (sum - own) / double(n - 1);
    }
  }
};

}  // namespace

MORTISE_ADVANTAGE_ESTIMATOR("rloo", Rloo)
