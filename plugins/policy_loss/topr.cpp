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
  static constexpr bool accepts_cuda = true;
  static constexpr const char* requires_inputs[] = {"rollout_log_prob", nullptr};
  static constexpr const char* consumes[] = {"rollout_is_weights", nullptr};

  std::string loss_agg_mode =
      mortise::own_aggregation(param("loss_agg_mode", "seq-mean-token-sum", mortise::kAggregationDoc));

  struct LogRatio {
    using Sums = double;
    MORTISE_HD void operator()(const mortise::TokenColumns& in, std::int64_t t, double& sum) const {
      sum += double(in.log_prob[t]) - double(in.rollout_log_prob[t]);
    }
  };
  struct Weight {
    MORTISE_HD double operator()(const mortise::TokenColumns& in, std::int64_t t, double tapered) const {
      return in.advantages[t] >= 0 ? 1.0 : tapered;
    }
  };
  template <class Passes>
  void context(const Passes& passes, const mortise::Call&) const {
    passes.require(passes.columns.rollout_log_prob, "rollout_log_prob");
    std::vector<double> rows = passes.row_sums(LogRatio{});
    for (double& row : rows) row = std::exp(std::min(row, 0.0));
    passes.set_numbers(Weight{}, rows);
  }

  enum { kWeight, kKl };
  static constexpr mortise::Metric metrics[] = {
      {kWeight, "topr/weight_mean", mortise::Average::kTokens},
      {kKl, "actor/ppo_kl", mortise::Average::kTokens},
  };

  template <class Real, class Meter>
  MORTISE_HD Real token(Real logp, double old_logp, double adv, double weight, Meter& meter) const {
    meter.add(kWeight, weight);
    meter.add(kKl, old_logp - logp);
    return (-adv * weight) * logp;
  }
};

}  // namespace

MORTISE_CONTEXT_LOSS("topr", Topr)
