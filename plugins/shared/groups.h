// What the group-relative advantage estimators share: means that leave nothing behind, and the prompt sampled once.
//
// Sums run over distances to the first number: equal rewards of any size leave exactly 0.
#pragma once

#include <algorithm>
#include <mortise/cpp/advantage.hpp>

namespace mortise {

inline double mean_of(Span<const double> x) {
  if (x.empty()) return 0;
  double sum = 0;
  for (const double value : x) sum += value - x[0];
  return x[0] + sum / double(x.size());
}

// Sum of squared distances to `mean`, over n - ddof; 0 where that leaves nothing to divide by.
inline double variance_of(Span<const double> x, double mean, std::int64_t ddof) {
  double square = 0;
  for (const double value : x) square += (value - mean) * (value - mean);
  return x.size() > ddof ? square / double(x.size() - ddof) : 0.0;
}

inline double variance_of(Span<const double> x, std::int64_t ddof) { return variance_of(x, mean_of(x), ddof); }

inline Span<const double> view(const std::vector<double>& x) { return {x.data(), std::int64_t(x.size())}; }
inline Group view(const ScoredGroup& g) { return {view(g.rewards), g.num_rows}; }

// Outcomes of all rows that have one.
inline std::vector<double> all_rewards(const std::vector<ScoredGroup>& groups) {
  std::vector<double> all;
  for (const ScoredGroup& g : groups) all.insert(all.end(), g.rewards.begin(), g.rewards.end());
  return all;
}

// x / scale, and 0 for 0 with any scale.
inline double scaled(double x, double scale) { return x == 0 ? 0.0 : x / scale; }

// An estimator that compares rows of a prompt, with a choice for a prompt sampled once. If a larger group has a single
// row with a reward, that row has nothing to compare with either, and its advantage is 0.
class GroupRelative : public OutcomeEstimator {
 public:
  explicit GroupRelative(const char* single_default)
      : single(std::string(param("single", single_default,
                                 "a prompt sampled once: 'reward' has baseline 0 and deviation 1, as in verl; 'zero' "
                                 "has advantage 0, as in TRL")
                               .choices({"reward", "zero"}))) {}

  std::string single;

 protected:
  static bool alone(const Group& g) { return g.rewards.size() == 1; }
  bool counts_alone(const Group& g) const { return alone(g) && g.num_rows == 1 && single == "reward"; }
  // What to compare a lone row with: 0, or itself.
  double lone_baseline(const Group& g) const { return counts_alone(g) ? 0.0 : g.rewards[0]; }
  double mean_baseline(const Group& g) const { return alone(g) ? lone_baseline(g) : mean_of(g.rewards); }
};

}  // namespace mortise
