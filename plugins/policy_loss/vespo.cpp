// vespo: variational sequence-level soft policy optimization (arXiv:2602.10693).
//
//   S = sum over the row of clamp(log_prob - old_log_prob, +-20) [+ sum of clamp(log rollout weight, ln 1e-8, 20)],
//   clamped to [ln 1e-8, 20],  W = exp(S),  phi = e^lambda W^k e^(-lambda W),  L = -sg(phi) A log_prob;
//   (k, lambda) = (2, 3) where A >= 0, (3, 2) elsewhere.
// phi is 1 at W = 1 and fades on both sides. The rollout importance weights are part of W, so this loss applies them
// instead of the engine. Names and defaults are TRL's; lambda is at least 1e-4. The default aggregation is token-mean.
#include <algorithm>
#include <cmath>

#include <mortise/cpp/mortise.hpp>

#include "../shared/clip.h"

namespace {

struct Vespo : mortise::ContextLoss {
  static constexpr const char* summary = "log-prob weighted by a smooth function of the sequence's ratio (VESPO)";
  static constexpr const char* doc =
      "W = product over the row of exp(log_prob - old_log_prob), phi = e^lambda W^k e^(-lambda W); L = -sg(phi) A "
      "log_prob. vespo_phi_mean is the mean over rows of the mean of phi over the row's tokens. arXiv:2602.10693";
  static constexpr std::uint32_t flags = MORTISE_FLAG_CONCURRENT | MORTISE_FLAG_SURROGATE_GRADIENT;
  static constexpr bool accepts_cuda = true;
  static constexpr const char* consumes[] = {"rollout_is_weights", nullptr};
  static constexpr const char* updates[] = {"vespo_phi_mean=vespo/phi_seq_mean", nullptr};
  static constexpr const char* const* update_metrics = updates;

  double k_pos = param("vespo_k_pos", 2.0, "exponent k where A >= 0").at_least(0);
  double lambda_pos = param("vespo_lambda_pos", 3.0, "decay lambda where A >= 0").at_least(0);
  double k_neg = param("vespo_k_neg", 3.0, "exponent k where A < 0").at_least(0);
  double lambda_neg = param("vespo_lambda_neg", 2.0, "decay lambda where A < 0").at_least(0);
  std::string loss_agg_mode = mortise::own_aggregation(param("loss_agg_mode", "token-mean", mortise::kAggregationDoc));

  static double phi(double log_w, double k, double lambda) {
    const double bounded = std::max(lambda, 1e-4);
    return std::exp(bounded + k * log_w - bounded * std::exp(log_w));
  }

  struct Row {
    double log_w = 0, positive = 0, negative = 0;  // the last two: tokens with A >= 0, and the others
  };
  struct Sum {
    using Sums = Row;
    double least;
    MORTISE_HD void operator()(const mortise::TokenColumns& in, std::int64_t t, Row& row) const {
      row.log_w += bounded(in.log_ratio(t), -20.0);
      if (in.rollout_is_weights != nullptr)
        row.log_w += bounded(mortise::detail::log_of(double(in.rollout_is_weights[t])), least);
      (in.advantages[t] >= 0 ? row.positive : row.negative) += 1;
    }
    MORTISE_HD static double bounded(double x, double low) { return x < low ? low : x > 20.0 ? 20.0 : x; }
  };
  struct Phi {
    double positive, negative;
    // The mean over the row's tokens.
    double mean(const Row& row) const {
      if (row.negative == 0) return positive;
      if (row.positive == 0) return negative;
      return (row.positive * positive + row.negative * negative) / (row.positive + row.negative);
    }
  };
  // phi of the token's row, for the sign of its advantage.
  struct Weight {
    MORTISE_HD double operator()(const mortise::TokenColumns& in, std::int64_t t, const Phi& row) const {
      return in.advantages[t] >= 0 ? row.positive : row.negative;
    }
  };
  template <class Passes>
  void context(const Passes& passes, const mortise::Call& call) const {
    const double least = std::log(1e-8);
    std::vector<Phi> rows;
    double sum = 0;
    for (const Row& row : passes.row_sums(Sum{least})) {
      const double w = std::clamp(row.log_w, least, 20.0);
      rows.push_back({phi(w, k_pos, lambda_pos), phi(w, k_neg, lambda_neg)});
      sum += rows.back().mean(row);
    }
    passes.set_numbers(Weight{}, rows);
    if (!rows.empty()) call.metric("vespo/phi_seq_mean", sum, double(rows.size()));
  }

  enum { kKl };
  static constexpr mortise::Metric metrics[] = {{kKl, "actor/ppo_kl", mortise::Average::kTokens}};

  template <class Real, class Meter>
  MORTISE_HD Real token(Real logp, double old_logp, double adv, double weight, Meter& meter) const {
    meter.add(kKl, old_logp - logp);
    return (-adv * weight) * logp;
  }
};

}  // namespace

MORTISE_CONTEXT_LOSS("vespo", Vespo)
