// topr: tapered off-policy REINFORCE (arXiv:2503.14286).
//
//   L = -A log_prob where A >= 0;  else -sg(min(pi/mu, 1)) A log_prob, pi/mu the ratio of the whole sequence,
//   exp(sum over the row of log_prob - rollout_log_prob).
// The policy learns from good samples however likely they are now, and from bad ones only while they are still likely.
// mu is the sampler, whose log-probs this loss needs. The engine's rollout importance weights are not applied as well.
// The paper sums over the sequence, so the default aggregation is seq-mean-token-sum. Trap: the product over a long row
// is soon 0 for rows that have become less likely; this is intended.
#include <algorithm>
#include <cmath>

#include <mortise/cpp/mortise.hpp>

#include "../shared/clip.h"

namespace {

struct Topr : mortise::ContextLoss {
  static constexpr const char* summary = "REINFORCE with a truncated sequence ratio on bad samples (TOPR)";
  static constexpr const char* doc =
      "L = -A log_prob where A >= 0, else -sg(min(prod pi/mu, 1)) A log_prob with mu the sampler. arXiv:2503.14286";
  static constexpr std::uint32_t flags = MORTISE_FLAG_CONCURRENT | MORTISE_FLAG_SURROGATE_GRADIENT;
  static constexpr const char* requires_inputs[] = {"rollout_log_prob", nullptr};
  static constexpr const char* consumes[] = {"rollout_is_weights", nullptr};

  std::string loss_agg_mode =
      mortise::own_aggregation(param("loss_agg_mode", "seq-mean-token-sum", mortise::kAggregationDoc));

  void context(const mortise::LossBatch& batch, const mortise::Call& call, mortise::Span<double> weight) const {
    const float* rollout = batch.required_rollout_log_prob();
    const std::vector<double> log_ratio =
        batch.row_sums(call, [&](std::int64_t t) { return double(batch.log_prob[t]) - double(rollout[t]); });
    batch.for_rows(call, [&](std::int64_t row) {
      const double tapered = std::exp(std::min(log_ratio[std::size_t(row)], 0.0));
      for (std::int64_t t = batch.begin(row); t < batch.end(row); ++t)
        weight[t] = batch.advantages[t] >= 0 ? 1.0 : tapered;
    });
  }

  enum { kWeight, kKl };
  static constexpr mortise::Metric metrics[] = {
      {kWeight, "topr/weight_mean", mortise::Average::kTokens},
      {kKl, "actor/ppo_kl", mortise::Average::kTokens},
  };

  template <class Real, class Meter>
  Real token(Real logp, double old_logp, double adv, double weight, Meter& meter) const {
    meter.add(kWeight, weight);
    meter.add(kKl, old_logp - logp);
    return (-adv * weight) * logp;
  }
};

}  // namespace

MORTISE_CONTEXT_LOSS("topr", Topr)
