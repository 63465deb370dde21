// remax: the return minus the reward of the prompt's greedy completion (ReMax, arXiv:2310.10505).
//
//   G_t = sum of the rewards of unmasked tokens from t on,  A = G - b,  b the greedy completion's reward; returns = G
// The engine makes the greedy completion (input reward_baselines). Undiscounted, as in verl.
// Traps: the baseline must come from a greedy completion, not from a sample at the training temperature. A row whose
// greedy completion has no reward (NaN) gets 0. A reward at a masked token has no effect.
#include <mortise/cpp/advantage.hpp>

namespace {

struct ReMax : mortise::AdvantageEstimator {
  static constexpr const char* summary = "return minus the reward of the greedy completion (ReMax)";
  static constexpr const char* doc = "A_t = sum_(t' >= t) r_t' - R(greedy). arXiv:2310.10505";
  static constexpr const char* required[] = {"reward_baselines", nullptr};
  static constexpr const char* const* requires_inputs = required;

  void compute(mortise::AdvantageBatch& batch, mortise::Call) override {
    for (std::int64_t row = 0; row < batch.num_rows(); ++row) {
      if (!batch.has_score(row)) continue;
      const auto mask = batch.mask(row);
      const auto rewards = batch.token_rewards(row);
      const auto advantages = batch.advantages(row), returns = batch.returns(row);
      const double baseline = batch.reward_baseline(row);
      double to_go = 0;
      for (std::int64_t t = mask.size() - 1; t >= 0; --t) {
        const bool kept = mask[t] != 0;
        if (kept) to_go += double(rewards[t]);
        if (!returns.empty()) returns[t] = float(to_go);
        if (!std::isnan(baseline)) advantages[t] = float(kept ? to_go - baseline : to_go);
      }
    }
  }
};

}  // namespace

MORTISE_ADVANTAGE_ESTIMATOR("remax", ReMax)
