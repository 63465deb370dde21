// gdpo: compares every reward function within the group, then adds and whitens (Group reward-Decoupled normalization
// Policy Optimization, arXiv:2601.05242).
//
//   z_k = (R_k - mean_g(R_k)) / (std_g(R_k) + epsilon),  c = sum_k w_k z_k,  A = whiten(c)
// std with n - 1; w_k are the weights of the reward functions. Defaults are verl's: epsilon 1e-6, whitening over the
// step's unmasked tokens, (c - mean) / sqrt(var + whiten_epsilon).
//   TRL normalize_then_sum   epsilon = 1e-4, whiten = rows, whiten_epsilon = 1e-4, single = zero
//   swift gdpo               epsilon = 1e-8, whiten = rows, whiten_epsilon = 1e-8, single = zero
// whiten = rows: (c - mean) / (std + whiten_epsilon) over the rows, each with the same weight. If a function does not
// apply to a row (NaN), that row's sum and that function's group omit it. A function that applies to a single row of a
// larger group gives it 0. Without reward columns the outcome is the only function.
// Trap: the columns are the functions' rewards. They do not contain a KL that was subtracted from the token rewards.
#include <mortise/cpp/advantage.hpp>

#include "../shared/groups.h"
#include "../shared/whiten.h"

namespace {

struct Gdpo : mortise::GroupRelative {
  static constexpr const char* summary = "each reward function normalized in its group, summed, whitened (GDPO)";
  static constexpr const char* doc =
      "z_k = (R_k - mean_g) / (std_g + epsilon); A = whiten(sum_k w_k z_k). arXiv:2601.05242";

  static constexpr std::uint32_t flags = GroupRelative::flags | MORTISE_FLAG_NORMALIZES_REWARDS;

  Gdpo() : GroupRelative("reward") {}

  bool norm_adv_by_std_in_grpo =
      param("norm_adv_by_std_in_grpo", true, "divide each function by its group's standard deviation");
  double epsilon = param("epsilon", 1e-6, "added to the groups' standard deviations").at_least(0);
  std::string whiten =
      param("whiten", "tokens", "mean 0 and deviation 1 over the step's 'tokens', its 'rows', or 'none'")
          .choices({"tokens", "rows", "none"});
  double whiten_epsilon =
      param("whiten_epsilon", 1e-8, "tokens: added to the variance; rows: added to the standard deviation").at_least(0);

  void compute(mortise::AdvantageBatch& batch, mortise::Call) override {
    const std::vector<mortise::ScoredGroup> groups = batch.groups();
    std::vector<double> combined(std::size_t(batch.num_rows()));
    for (const mortise::ScoredGroup& g : groups) {
      if (batch.num_functions() == 0) add(g, 1.0, combined);
      for (std::int64_t k = 0; k < batch.num_functions(); ++k)
        add(column(batch, g, k), batch.reward_weight(k), combined);
    }
    if (whiten == "rows") whiten_rows(groups, combined);
    if (whiten == "tokens") whiten_tokens(batch, groups, combined);
    for (const mortise::ScoredGroup& g : groups) {
      for (const std::int64_t row : g.rows) batch.broadcast(row, combined[std::size_t(row)]);
    }
  }

  // z of one function in one group.
  void group(const mortise::Group& g, mortise::Span<double> z) const override {
    const double mean = mean_baseline(g);
    const double deviation = alone(g) ? 1.0 : std::sqrt(mortise::variance_of(g.rewards, mean, 1));
    const double scale = norm_adv_by_std_in_grpo ? deviation + epsilon : 1.0;
    for (std::int64_t i = 0; i < z.size(); ++i) z[i] = mortise::scaled(g.rewards[i] - mean, scale);
  }

 private:
  static mortise::ScoredGroup column(const mortise::AdvantageBatch& batch, const mortise::ScoredGroup& g,
                                     std::int64_t k) {
    mortise::ScoredGroup out;
    out.num_rows = g.num_rows;
    for (const std::int64_t row : g.rows) {
      const double reward = batch.reward(row, k);
      if (std::isnan(reward)) continue;
      out.rows.push_back(row);
      out.rewards.push_back(reward);
    }
    return out;
  }

  void add(const mortise::ScoredGroup& g, double weight, std::vector<double>& combined) const {
    if (g.rows.empty()) return;
    std::vector<double> z(g.rows.size());
    group(mortise::view(g), z);
    for (std::size_t i = 0; i < z.size(); ++i) combined[std::size_t(g.rows[i])] += weight * z[i];
  }

  void whiten_rows(const std::vector<mortise::ScoredGroup>& groups, std::vector<double>& combined) const {
    std::vector<double> scored;
    for (const mortise::ScoredGroup& g : groups) {
      for (const std::int64_t row : g.rows) scored.push_back(combined[std::size_t(row)]);
    }
    const double mean = mortise::mean_of(mortise::view(scored));
    const double scale = std::sqrt(mortise::variance_of(mortise::view(scored), mean, 1)) + whiten_epsilon;
    for (double& c : combined) c = mortise::scaled(c - mean, scale);
  }

  void whiten_tokens(const mortise::AdvantageBatch& batch, const std::vector<mortise::ScoredGroup>& groups,
                     std::vector<double>& combined) const {
    std::vector<double> cells(std::size_t(batch.num_tokens()));
    for (std::int64_t row = 0; row < batch.num_rows(); ++row) {
      for (double& cell : mortise::row_of(batch, cells, row)) cell = combined[std::size_t(row)];
    }
    mortise::whiten(batch, cells, whiten_epsilon);
    for (const mortise::ScoredGroup& g : groups) {
      for (const std::int64_t row : g.rows) {
        const auto own = mortise::row_of(batch, cells, row);
        if (!own.empty()) combined[std::size_t(row)] = own[0];
      }
    }
  }
};

}  // namespace

MORTISE_ADVANTAGE_ESTIMATOR("gdpo", Gdpo)
