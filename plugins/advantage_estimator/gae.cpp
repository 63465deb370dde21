// gae: generalized advantage estimation over a critic's values (arXiv:1506.02438), whitened.
//
//   delta_t = r_t + gamma V_next - V_t,  a_t = delta_t + gamma lam a_next,  returns = a + V,  A = whiten(a)
// "next" is the next unmasked token; after the last one it is 0. Whitening uses mean and deviation over all unmasked
// tokens of the step, n - 1, epsilon under the root, as in verl and TRL's PPO.
// Decoupled (VC-PPO, arXiv:2503.01491; VAPO, arXiv:2504.05118): lam_critic is the lambda of the returns only.
// Length-adaptive (VAPO): lambda of the advantages = 1 - 1 / (alpha length), at least 0, with length the row's unmasked
// tokens; the paper has alpha = 0.05 with lam_critic = 1. Traps: rewards at masked tokens have no effect, as in verl.
// Masked cells have the advantage of the next token. If a step has at most one unmasked token, verl raises an error;
// here the token gets 0.
#include <mortise/cpp/advantage.hpp>

#include "../shared/clip.h"
#include "../shared/whiten.h"

namespace {

struct Gae : mortise::AdvantageEstimator {
  static constexpr const char* summary = "generalized advantage estimation with a critic, whitened (PPO)";
  static constexpr const char* doc =
      "a_t = r_t + gamma V_next - V_t + gamma lam a_next; returns = a + V; A = (a - mean) / sqrt(var + epsilon). "
      "arXiv:1506.02438; decoupled and length-adaptive lambda: 2503.01491, 2504.05118";
  static constexpr const char* required[] = {"values", nullptr};
  static constexpr const char* const* requires_inputs = required;

  double gamma = param("gamma", 1.0, "discount").range(0, 1);
  double lam = param("lam", 1.0, "lambda: 1 trusts the rewards, 0 the critic").range(0, 1);
  double lam_critic = param("lam_critic", mortise::none, "lambda of the returns; not set: lam").range(0, 1);
  double length_adaptive_alpha = param("length_adaptive_alpha", mortise::none,
                                       "lambda of the advantages = 1 - 1 / (alpha length); VAPO: 0.05; not set: lam")
                                     .above(0);
  bool whiten =
      param("whiten", true, "shift and scale the advantages to mean 0 and deviation 1 over the step's tokens");
  double epsilon = param("epsilon", 1e-8, "added to the variance in the whitening").at_least(0);

  void compute(mortise::AdvantageBatch& batch, mortise::Call) override {
    std::vector<double> advantages(std::size_t(batch.num_tokens()));
    std::vector<double> returns(advantages.size());
    const double critic = mortise::first_set(lam_critic, lam);
    for (std::int64_t row = 0; row < batch.num_rows(); ++row) {
      if (!batch.has_score(row)) continue;
      scan(batch, row, lambda_of(batch, row), mortise::row_of(batch, advantages, row));
      const auto to_returns = mortise::row_of(batch, returns, row);
      scan(batch, row, critic, to_returns);
      for (std::int64_t t = 0; t < to_returns.size(); ++t) to_returns[t] += double(batch.values(row)[t]);
    }
    if (whiten) mortise::whiten(batch, advantages, epsilon);
    for (std::int64_t row = 0; row < batch.num_rows(); ++row) {
      if (!batch.has_score(row)) continue;
      mortise::store(mortise::row_of(batch, advantages, row), batch.advantages(row));
      mortise::store(mortise::row_of(batch, returns, row), batch.returns(row));
    }
  }

 private:
  double lambda_of(const mortise::AdvantageBatch& batch, std::int64_t row) const {
    if (!mortise::is_set(length_adaptive_alpha)) return lam;
    double length = 0;
    for (const std::uint8_t kept : batch.mask(row)) length += kept != 0;
    return length > 0 ? std::max(0.0, 1 - 1 / (length_adaptive_alpha * length)) : 0.0;
  }

  void scan(const mortise::AdvantageBatch& batch, std::int64_t row, double lambda, mortise::Span<double> out) const {
    const auto mask = batch.mask(row);
    const auto rewards = batch.token_rewards(row), values = batch.values(row);
    double next_value = 0, next = 0;
    for (std::int64_t t = out.size() - 1; t >= 0; --t) {
      if (mask[t] != 0) {
        const double value = double(values[t]);
        next = double(rewards[t]) + gamma * next_value - value + gamma * lambda * next;
        next_value = value;
      }
      out[t] = next;
    }
  }
};

}  // namespace

MORTISE_ADVANTAGE_ESTIMATOR("gae", Gae)
