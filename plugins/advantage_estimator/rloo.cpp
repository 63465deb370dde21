// rloo and rloo_vectorized: the reward minus the mean of the other rows of its group (REINFORCE leave-one-out,
// arXiv:2402.14740).
//
//   A = R - (sum_g - R) / (n - 1) = n / (n - 1) * (R - mean_g), n the rows of the group that have a reward.
// A prompt sampled once: rloo has baseline 0, A = R; rloo_vectorized A = 0, both as in verl. TRL's
// normalize_advantages: (A - mean) / (std + epsilon) over all rows of the step, n - 1. swift's scale_rewards = group or
// batch with rloo: std = group or batch of the rewards, n - 1.
#include <mortise/cpp/advantage.hpp>

#include "../shared/groups.h"

namespace {

struct Rloo : mortise::GroupRelative {
  static constexpr const char* summary = "reward minus the mean of the group's other rows (RLOO)";
  static constexpr const char* doc = "A = R - (sum_g - R) / (n - 1). arXiv:2402.14740";

  explicit Rloo(const char* single_default = "reward") : GroupRelative(single_default) {}

  std::string std_of =
      param("std", "none", "divide by the standard deviation of the rewards of the 'group' or the 'batch'")
          .choices({"none", "group", "batch"});
  bool normalize_advantages =
      param("normalize_advantages", false, "then subtract the mean and divide by the deviation over the step's rows");
  double epsilon = param("epsilon", 1e-4, "added to these standard deviations").at_least(0);

  void compute(mortise::AdvantageBatch& batch, mortise::Call) override {
    const std::vector<mortise::ScoredGroup> groups = batch.groups();
    const std::vector<double> rewards = mortise::all_rewards(groups);
    batch_std_ = rewards.size() > 1 ? std::sqrt(mortise::variance_of(mortise::view(rewards), 1)) : 1.0;
    std::vector<double> advantages(rewards.size());
    std::int64_t at = 0;
    for (const mortise::ScoredGroup& g : groups) {
      group(mortise::view(g), {advantages.data() + at, std::int64_t(g.rows.size())});
      at += std::int64_t(g.rows.size());
    }
    if (normalize_advantages) normalize(advantages);
    at = 0;
    for (const mortise::ScoredGroup& g : groups) {
      for (const std::int64_t row : g.rows) batch.broadcast(row, advantages[std::size_t(at++)]);
    }
  }

  void group(const mortise::Group& g, mortise::Span<double> advantages) const override {
    const std::int64_t n = g.rewards.size();
    if (n == 1) {
      advantages[0] = g.rewards[0] - lone_baseline(g);
      return;
    }
    double sum = 0;
    for (const double r : g.rewards) sum += r - g.rewards[0];
    double scale = 1;
    if (std_of == "group") scale = std::sqrt(mortise::variance_of(g.rewards, 1)) + epsilon;
    if (std_of == "batch") scale = batch_std_ + epsilon;
    for (std::int64_t i = 0; i < n; ++i) {
      const double own = g.rewards[i] - g.rewards[0];
      advantages[i] = mortise::scaled(own - (sum - own) / double(n - 1), scale);
    }
  }

 private:
  void normalize(std::vector<double>& advantages) const {
    const double mean = mortise::mean_of(mortise::view(advantages));
    const double scale = std::sqrt(mortise::variance_of(mortise::view(advantages), mean, 1)) + epsilon;
    for (double& a : advantages) a = mortise::scaled(a - mean, scale);
  }

  double batch_std_ = 1;
};

struct RlooVectorized : Rloo {
  static constexpr const char* summary = "rloo where a prompt sampled once has advantage 0";
  RlooVectorized() : Rloo("zero") {}
};

}  // namespace

MORTISE_ADVANTAGE_ESTIMATOR("rloo", Rloo)
MORTISE_ADVANTAGE_ESTIMATOR("rloo_vectorized", RlooVectorized)
