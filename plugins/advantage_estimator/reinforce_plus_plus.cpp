// reinforce_plus_plus: discounted returns, whitened over the step (REINFORCE++, arXiv:2501.03262).
//
//   G_t = r_t + gamma G_(t+1),  A = whiten(G) at unmasked tokens; returns = G
// Whitening: mean and deviation over all unmasked tokens of the step, n - 1, epsilon under the root. No groups, no
// critic. The paper takes the KL to the reference from the token rewards: algorithm.use_kl_in_reward.
// masked_tokens = reset is verl's of January 2026: a masked token (a tool's answer) cuts the return, so nothing before
// it hears of the reward behind it. skip passes over masked tokens, as later versions do.
// swift's estimator of this name is another one: grpo with std = batch_centred and epsilon = 1e-4.
// Trap: a reward at a masked last token is lost either way.
#include <mortise/cpp/advantage.hpp>

#include "../shared/whiten.h"

namespace {

struct ReinforcePlusPlus : mortise::AdvantageEstimator {
  static constexpr const char* summary = "discounted returns, whitened over the step (REINFORCE++)";
  static constexpr const char* doc =
      "G_t = r_t + gamma G_next; A = (G - mean) / sqrt(var + epsilon) over the step's tokens. arXiv:2501.03262";

  double gamma = param("gamma", 1.0, "discount").range(0, 1);
  std::string masked_tokens =
      param("masked_tokens", "reset", "'reset': a masked token cuts the return; 'skip': it has no effect")
          .choices({"reset", "skip"});
  double epsilon = param("epsilon", 1e-8, "added to the variance in the whitening").at_least(0);

  void compute(mortise::AdvantageBatch& batch, mortise::Call) override {
    std::vector<double> returns(std::size_t(batch.num_tokens()));
    for (std::int64_t row = 0; row < batch.num_rows(); ++row) {
      if (!batch.has_score(row)) continue;
      discount(batch, row, mortise::row_of(batch, returns, row));
      mortise::store(mortise::row_of(batch, returns, row), batch.returns(row));
    }
    mortise::whiten(batch, returns, epsilon);
    for (std::int64_t row = 0; row < batch.num_rows(); ++row) {
      if (batch.has_score(row))
        mortise::store(mortise::row_of(batch, returns, row), batch.mask(row), batch.advantages(row));
    }
  }

 private:
  void discount(const mortise::AdvantageBatch& batch, std::int64_t row, mortise::Span<double> out) const {
    const auto mask = batch.mask(row);
    const auto rewards = batch.token_rewards(row);
    const bool reset = masked_tokens == "reset";
    double next = 0;
    for (std::int64_t t = out.size() - 1; t >= 0; --t) {
      const bool kept = mask[t] != 0;
      if (kept || reset) next = double(rewards[t]) + gamma * next;
      out[t] = next;
      if (!kept && reset) next = 0;
    }
  }
};

}  // namespace

MORTISE_ADVANTAGE_ESTIMATOR("reinforce_plus_plus", ReinforcePlusPlus)
