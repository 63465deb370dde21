// reinforce_plus_plus_baseline: the reward less its group's mean, whitened over the step (arXiv:2501.03262).
//
//   A = whiten(R - mean_g) at unmasked tokens
// Whitening: mean and deviation over all unmasked tokens of the step, n - 1, epsilon under the root. A prompt sampled
// once has mean 0, as in verl; single = zero gives it R - R = 0 before the whitening.
// Trap: tokens count, not rows, so long rows decide mean and deviation, and advantages of a group need not sum to 0.
#include <mortise/cpp/advantage.hpp>

#include "../shared/groups.h"
#include "../shared/whiten.h"

namespace {

struct ReinforcePlusPlusBaseline : mortise::GroupRelative {
  static constexpr const char* summary = "reward minus the group's mean, whitened over the step (REINFORCE++-baseline)";
  static constexpr const char* doc =
      "A = (d - mean) / sqrt(var + epsilon) over the step's tokens, d = R - mean_g. arXiv:2501.03262";

  ReinforcePlusPlusBaseline() : GroupRelative("reward") {}

  double epsilon = param("epsilon", 1e-8, "added to the variance in the whitening").at_least(0);

  void compute(mortise::AdvantageBatch& batch, mortise::Call) override {
    const std::vector<mortise::ScoredGroup> groups = batch.groups();
    std::vector<double> centred(std::size_t(batch.num_tokens()));
    for (const mortise::ScoredGroup& g : groups) {
      const double mean = mean_baseline(mortise::view(g));
      for (std::size_t i = 0; i < g.rows.size(); ++i) {
        for (double& cell : mortise::row_of(batch, centred, g.rows[i])) cell = g.rewards[i] - mean;
      }
    }
    mortise::whiten(batch, centred, epsilon);
    for (const mortise::ScoredGroup& g : groups) {
      for (const std::int64_t row : g.rows) {
        const auto cells = mortise::row_of(batch, centred, row);
        if (!cells.empty()) batch.broadcast(row, cells[0]);
      }
    }
  }

  void group(const mortise::Group&, mortise::Span<double>) const override {}  // compute() needs the whole step
};

}  // namespace

MORTISE_ADVANTAGE_ESTIMATOR("reinforce_plus_plus_baseline", ReinforcePlusPlusBaseline)
