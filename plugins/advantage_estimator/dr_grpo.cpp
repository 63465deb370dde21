// dr_grpo: the reward less its group's mean, not divided by anything (Dr. GRPO, arXiv:2503.20783).
//
//   A = R - mean_g. The same as grpo with norm_adv_by_std_in_grpo = false.
// A prompt sampled once gets A = R, as in verl; single = zero gives 0. The paper's other half, a loss divided by a
// constant length, is loss_agg_mode = seq-mean-token-sum-norm.
#include <mortise/cpp/advantage.hpp>

#include "../shared/groups.h"

namespace {

struct DrGrpo : mortise::GroupRelative {
  static constexpr const char* summary = "reward minus the group's mean (Dr. GRPO)";
  static constexpr const char* doc = "A = R - mean_g. arXiv:2503.20783";

  DrGrpo() : GroupRelative("reward") {}

  void group(const mortise::Group& g, mortise::Span<double> advantages) const override {
    const double mean = mean_baseline(g);
    for (std::int64_t i = 0; i < advantages.size(); ++i) advantages[i] = g.rewards[i] - mean;
  }
};

}  // namespace

MORTISE_ADVANTAGE_ESTIMATOR("dr_grpo", DrGrpo)
