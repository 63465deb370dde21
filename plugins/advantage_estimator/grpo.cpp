// grpo and grpo_vectorized: the reward relative to its group (Group Relative Policy Optimization, arXiv:2402.03300).
//
//   A = (R - mean_g) / (std + epsilon)
// Defaults are verl's: std of the group with n - 1, epsilon 1e-6, a prompt sampled once gets R / (1 + epsilon).
//   norm_adv_by_std_in_grpo = false   A = R - mean_g, as dr_grpo
//   TRL, swift                        epsilon = 1e-4, single = zero
//   TRL scale_rewards = batch, LitePPO (arXiv:2508.08221)   std = batch
//   swift reinforce_plus_plus         std = batch_centred, epsilon = 1e-4
//   TRL AsyncGRPO                     ddof = 0, epsilon = 1e-8
// grpo_vectorized differs in verl by a floor under the variance: min_variance = 1e-6 (January 2026; later 0). It
// matters where rewards of a group differ by less than 1e-3. Traps: dividing by the deviation favours prompts that are
// nearly always or nearly never solved; Dr. GRPO and std = batch do not.
#include <mortise/cpp/advantage.hpp>

#include "../shared/groups.h"

namespace {

struct Grpo : mortise::GroupRelative {
  static constexpr const char* summary = "reward minus the group's mean, over its standard deviation (GRPO)";
  static constexpr const char* doc = "A = (R - mean_g) / (std_g + epsilon), std with n-1. arXiv:2402.03300, 2503.20783";

  explicit Grpo(double least_variance = 0)
      : GroupRelative("reward"),
        min_variance(
            param("min_variance", least_variance, "floor under the group's variance before its root").at_least(0)) {}

  bool norm_adv_by_std_in_grpo =
      param("norm_adv_by_std_in_grpo", true, "divide by the standard deviation; false: Dr. GRPO");
  double epsilon = param("epsilon", 1e-6, "added to the standard deviation; TRL and swift use 1e-4").at_least(0);
  std::string std_of = param("std", "group",
                             "standard deviation of: 'group', the prompt's rewards; 'batch', all rewards of the step; "
                             "'batch_centred', all rewards minus their group's mean")
                           .choices({"group", "batch", "batch_centred"});
  std::int64_t ddof = param("ddof", 1, "the variance divides by n - ddof").range(0, 1);
  double min_variance;

  void compute(mortise::AdvantageBatch& batch, mortise::Call call) override {
    if (std_of != "group") batch_std_ = deviation_of(batch.groups());
    OutcomeEstimator::compute(batch, call);
  }

  void group(const mortise::Group& g, mortise::Span<double> advantages) const override {
    const double mean = mean_baseline(g);
    double scale = 1;
    if (norm_adv_by_std_in_grpo) {
      const double group_std = alone(g) ? 1.0 : root(mortise::variance_of(g.rewards, mean, ddof));
      scale = (std_of == "group" ? group_std : batch_std_) + epsilon;
    }
    for (std::int64_t i = 0; i < advantages.size(); ++i) advantages[i] = mortise::scaled(g.rewards[i] - mean, scale);
  }

 private:
  double root(double variance) const { return std::sqrt(std::max(variance, min_variance)); }

  // The deviation over the whole step; 1 if only one row has a reward.
  double deviation_of(const std::vector<mortise::ScoredGroup>& groups) const {
    std::vector<double> values = mortise::all_rewards(groups);
    if (values.size() < 2) return 1;
    if (std_of == "batch_centred") {
      std::size_t at = 0;
      for (const mortise::ScoredGroup& g : groups) {
        const double mean = mean_baseline(mortise::view(g));
        for (std::size_t i = 0; i < g.rewards.size(); ++i) values[at++] -= mean;
      }
    }
    return root(mortise::variance_of(mortise::view(values), ddof));
  }

  double batch_std_ = 1;
};

struct GrpoVectorized : Grpo {
  static constexpr const char* summary = "grpo with verl's floor of 1e-6 under the variance";
  GrpoVectorized() : Grpo(1e-6) {}
};

}  // namespace

MORTISE_ADVANTAGE_ESTIMATOR("grpo", Grpo)
MORTISE_ADVANTAGE_ESTIMATOR("grpo_vectorized", GrpoVectorized)
