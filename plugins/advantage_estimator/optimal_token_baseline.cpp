// optimal_token_baseline and tir_optimal_token_baseline: a baseline of least variance for every position of a group
// (verl's OTB).
//
//   G_t = rewards of unmasked tokens from t on
//   W_t = sum_(j <= t) (1 - 2 pi_j + sum_v pi_v^2) w_j^2 over unmasked tokens: the squared norm of the score so far
//   B_t = sum_g(G_t W_t) / (sum_g(W_t) + epsilon) over the rows that have an unmasked token at t,  A = G - B
// w_j are the rollout importance weights if the step has them, else 1. optimal_token_baseline compares the same
// positions of the rows. tir_optimal_token_baseline (tool-integrated reasoning) counts only unmasked tokens, so that
// tool answers do not shift the rows, and leaves out rows without any. handle_zero_tail: the part of the longest row
// beyond the second longest has no baseline (A = G). Without it that part is compared only with itself: A = 0. verl of
// January 2026: off for the first, on for the second. A prompt sampled once has no baseline: A = G. Needs
// sum_pi_squared, the sum of squared probabilities of the vocabulary.
#include <mortise/cpp/advantage.hpp>

#include "../shared/whiten.h"

namespace {

struct OptimalTokenBaseline : mortise::AdvantageEstimator {
  static constexpr const char* summary = "return minus the variance-optimal baseline of its place in the group (OTB)";
  static constexpr const char* doc =
      "A_t = G_t - sum_g(G_t W_t) / (sum_g(W_t) + epsilon), W_t = sum_(j<=t) (1 - 2 pi_j + sum pi^2) w_j^2. "
      "verl optimal_token_baseline";
  static constexpr std::uint32_t flags = MORTISE_FLAG_COMPARES_GROUP;
  static constexpr const char* required[] = {"old_log_prob", "sum_pi_squared", nullptr};
  static constexpr const char* const* requires_inputs = required;

  explicit OptimalTokenBaseline(bool tir = false)
      : handle_zero_tail(
            param("handle_zero_tail", tir,
                  "no baseline at positions that only the longest row of a group has; false: advantage 0 there")),
        compact_(tir) {}

  bool handle_zero_tail;
  double epsilon = param("epsilon", 1e-8, "added to the sum of the weights").at_least(0);

  void compute(mortise::AdvantageBatch& batch, mortise::Call) override {
    returns_.assign(std::size_t(batch.num_tokens()), 0.0);
    weights_.assign(returns_.size(), 0.0);
    for (const mortise::ScoredGroup& g : batch.groups()) {
      for (const std::int64_t row : g.rows) accumulate(batch, row);
      compare(batch, g);
    }
  }

 private:
  void accumulate(mortise::AdvantageBatch& batch, std::int64_t row) {
    const auto mask = batch.mask(row);
    const auto rewards = batch.token_rewards(row), log_prob = batch.old_log_prob(row);
    const auto squares = batch.sum_pi_squared(row), importance = batch.rollout_is_weights(row);
    const auto to_go = mortise::row_of(batch, returns_, row), weights = mortise::row_of(batch, weights_, row);
    double sum = 0;
    for (std::int64_t t = mask.size() - 1; t >= 0; --t) to_go[t] = sum += mask[t] != 0 ? double(rewards[t]) : 0.0;
    sum = 0;
    for (std::int64_t t = 0; t < mask.size(); ++t) {
      if (mask[t] != 0) {
        const double w = importance.empty() ? 1.0 : double(importance[t]);
        sum += (1 - 2 * std::exp(double(log_prob[t])) + double(squares[t])) * w * w;
      }
      weights[t] = sum;
    }
    mortise::store(to_go, batch.returns(row));
  }

  // visit(t, position) for the row's unmasked tokens; returns their number.
  template <class Visit>
  std::int64_t positions(const mortise::AdvantageBatch& batch, std::int64_t row, const Visit& visit) const {
    const auto mask = batch.mask(row);
    std::int64_t count = 0;
    for (std::int64_t t = 0; t < mask.size(); ++t) {
      if (mask[t] == 0) continue;
      visit(t, compact_ ? count : t);
      ++count;
    }
    return count;
  }

  void compare(mortise::AdvantageBatch& batch, const mortise::ScoredGroup& g) {
    std::vector<double> weighted, weight;  // by position
    std::int64_t rows = 0, longest = 0, second = 0;
    for (const std::int64_t row : g.rows) {
      const std::size_t width = std::size_t(batch.mask(row).size());
      if (weight.size() < width) weight.resize(width), weighted.resize(width);
      const auto to_go = mortise::row_of(batch, returns_, row), weights = mortise::row_of(batch, weights_, row);
      const std::int64_t length = positions(batch, row, [&](std::int64_t t, std::int64_t p) {
        weighted[std::size_t(p)] += to_go[t] * weights[t];
        weight[std::size_t(p)] += weights[t];
      });
      if (length > 0 || !compact_) ++rows;
      second = std::max(second, std::min(longest, length));
      longest = std::max(longest, length);
    }
    if (g.rows.size() == 1 && g.num_rows > 1) return;  // nothing to be compared with: 0
    for (const std::int64_t row : g.rows) {
      const auto to_go = mortise::row_of(batch, returns_, row);
      const auto advantages = batch.advantages(row);
      const std::int64_t length = positions(batch, row, [](std::int64_t, std::int64_t) {});
      const bool tail = handle_zero_tail && length == longest && longest > second;
      positions(batch, row, [&](std::int64_t t, std::int64_t p) {
        const bool compared = rows > 1 && !(tail && p >= second);
        const double total = weight[std::size_t(p)] + epsilon;
        advantages[t] = float(compared && total != 0 ? to_go[t] - weighted[std::size_t(p)] / total : to_go[t]);
      });
    }
  }

  bool compact_;
  std::vector<double> returns_, weights_;  // [N]
};

struct TirOptimalTokenBaseline : OptimalTokenBaseline {
  static constexpr const char* summary =
      "optimal_token_baseline by the number of unmasked tokens, for rows with tool answers";
  TirOptimalTokenBaseline() : OptimalTokenBaseline(true) {}
};

}  // namespace

MORTISE_ADVANTAGE_ESTIMATOR("optimal_token_baseline", OptimalTokenBaseline)
MORTISE_ADVANTAGE_ESTIMATOR("tir_optimal_token_baseline", TirOptimalTokenBaseline)
