// gpg: the centred reward, scaled up to make up for rows without gradient (Group Policy Gradient, arXiv:2504.02546).
//
//   A = alpha (R - mean_g) / f_norm
// alpha = 'nonzero' is verl's: rows / rows whose reward is not 0. 'informative' is the paper's B / (B - M), with M the
// rows of groups whose rewards are all equal and which therefore have gradient 0. 'one' is 1. A prompt sampled once has
// mean 0, as in verl. Traps: with rewards of -1 and 1 'nonzero' is always 1, and a constant added to all rewards
// changes it.
#include <mortise/cpp/advantage.hpp>

#include "../shared/groups.h"

namespace {

struct Gpg : mortise::GroupRelative {
  static constexpr const char* summary = "reward minus the group's mean, times rows over informative rows (GPG)";
  static constexpr const char* doc =
      "A = alpha (R - mean_g) / f_norm, alpha = rows / nonzero rewards. arXiv:2504.02546";

  Gpg() : GroupRelative("reward") {}

  double f_norm = param("f_norm", 1.0, "divisor, F_norm in the paper").above(0);
  std::string alpha = param("alpha", "nonzero",
                            "scale: rows over rows with a 'nonzero' reward (verl), rows over rows of 'informative' "
                            "groups, whose rewards differ (the paper), or 'one'")
                          .choices({"nonzero", "informative", "one"});

  void compute(mortise::AdvantageBatch& batch, mortise::Call call) override {
    const std::vector<mortise::ScoredGroup> groups = batch.groups();
    double rows = 0, counted = 0;
    for (const mortise::ScoredGroup& g : groups) {
      rows += double(g.rows.size());
      bool differ = false;
      for (const double r : g.rewards) differ = differ || r != g.rewards[0];
      if (alpha == "informative") counted += differ ? double(g.rows.size()) : 0.0;
      if (alpha == "nonzero") counted += double(g.rewards.size() - std::size_t(zeros(g)));
    }
    scale_ = alpha == "one" ? 1.0 : rows / std::max(counted, 1.0);
    OutcomeEstimator::compute(batch, call);
  }

  void group(const mortise::Group& g, mortise::Span<double> advantages) const override {
    const double mean = mean_baseline(g);
    for (std::int64_t i = 0; i < advantages.size(); ++i) advantages[i] = scale_ * (g.rewards[i] - mean) / f_norm;
  }

 private:
  static std::int64_t zeros(const mortise::ScoredGroup& g) {
    return std::count(g.rewards.begin(), g.rewards.end(), 0.0);
  }

  double scale_ = 1;
};

}  // namespace

MORTISE_ADVANTAGE_ESTIMATOR("gpg", Gpg)
