// opo: the reward less the length-weighted mean of its group (On-Policy RL with Optimal reward baseline,
// arXiv:2505.23585).
//
//   A = R - sum_g(len R) / sum_g(len), len the unmasked tokens of the row.
// The baseline of least variance where the squared norm of a row's gradient grows with its length. Advantages of a
// group, weighted by length, sum to 0. A prompt sampled once has baseline 0, as in verl; single = zero gives 0.
#include <mortise/cpp/advantage.hpp>

#include "../shared/groups.h"

namespace {

struct Opo : mortise::GroupRelative {
  static constexpr const char* summary = "reward minus the group's mean weighted by length (OPO)";
  static constexpr const char* doc = "A = R - sum_g(len R) / sum_g(len). arXiv:2505.23585";

  Opo() : GroupRelative("reward") {}

  void compute(mortise::AdvantageBatch& batch, mortise::Call) override {
    for (const mortise::ScoredGroup& g : batch.groups()) {
      const double baseline = alone(mortise::view(g)) ? lone_baseline(mortise::view(g)) : weighted_mean(batch, g);
      for (std::size_t i = 0; i < g.rows.size(); ++i) batch.broadcast(g.rows[i], g.rewards[i] - baseline);
    }
  }

  void group(const mortise::Group&, mortise::Span<double>) const override {}  // compute() needs the lengths

 private:
  static double weighted_mean(const mortise::AdvantageBatch& batch, const mortise::ScoredGroup& g) {
    double total = 0, weight = 0;
    for (std::size_t i = 0; i < g.rows.size(); ++i) {
      double length = 0;
      for (const std::uint8_t kept : batch.mask(g.rows[i])) length += kept != 0;
      total += length * (g.rewards[i] - g.rewards[0]);
      weight += length;
    }
    return weight > 0 ? g.rewards[0] + total / weight : 0.0;
  }
};

}  // namespace

MORTISE_ADVANTAGE_ESTIMATOR("opo", Opo)
