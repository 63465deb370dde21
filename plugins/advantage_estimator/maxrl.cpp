// maxrl: the centred reward over the group's mean (Maximum Likelihood Reinforcement Learning, arXiv:2602.02710).
//
//   A = (R - mean_g) / (mean_g + epsilon)
// With 0/1 rewards the mean is the share of solved samples. A prompt solved once in n gives its solution n - 1, and the
// expected gradient is that of the log of the probability to solve it, with its series cut at order n - 1. A group
// without success gets 0, and so does a prompt sampled once.
// Trap: it is for rewards that are not negative. A group whose mean is 0 or below gets 0.
#include <mortise/cpp/advantage.hpp>

#include "../shared/groups.h"

namespace {

struct MaxRl : mortise::OutcomeEstimator {
  static constexpr const char* summary = "reward minus the group's mean, over that mean (MaxRL)";
  static constexpr const char* doc = "A = (R - mean_g) / (mean_g + epsilon); mean_g <= 0: 0. arXiv:2602.02710";

  double epsilon = param("epsilon", 0.0, "added to the mean").at_least(0);

  void group(const mortise::Group& g, mortise::Span<double> advantages) const override {
    const double mean = mortise::mean_of(g.rewards);
    if (mean <= 0) return;
    for (std::int64_t i = 0; i < advantages.size(); ++i)
      advantages[i] = mortise::scaled(g.rewards[i] - mean, mean + epsilon);
  }
};

}  // namespace

MORTISE_ADVANTAGE_ESTIMATOR("maxrl", MaxRl)
