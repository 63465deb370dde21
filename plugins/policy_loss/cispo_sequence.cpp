// cispo_sequence: cispo with one ratio for the whole row (TRL's and ms-swift's loss_type cispo at importance_sampling_level
// sequence).
//
//   s = exp(clamp(mean over the row of log_prob - old_log_prob, -20, 20)),
//   L = -sg(clamp(s, 1 - low, 1 + high)) A log_prob, or with cap -sg(min(s, cap)) A log_prob.
// Edges and cap as in cispo, which has the ratio of each token as in its paper. The default aggregation is token-mean, as
// in TRL; a long row then counts more than a short one.
#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "cispo.h"

namespace {

struct CispoSequence : mortise::CappedRatio<mortise::ContextLoss> {
  static constexpr const char* summary = "CISPO with the ratio of the whole row";
  static constexpr const char* doc =
      "s = exp(mean of log_prob - old_log_prob over the row); L = -sg(clamp(s, 1-low, 1+high)) A log_prob, or "
      "-sg(min(s, cap)) A log_prob. arXiv:2506.13585 with the ratio of arXiv:2507.18071";
  static constexpr std::uint32_t flags = MORTISE_FLAG_CONCURRENT | MORTISE_FLAG_SURROGATE_GRADIENT;
  static constexpr bool accepts_cuda = true;
  static constexpr const char* updates[] = {"cispo_clip_ratio", nullptr};
  static constexpr const char* const* update_metrics = updates;

  std::string loss_agg_mode = mortise::own_aggregation(param("loss_agg_mode", "token-mean", mortise::kAggregationDoc));

  struct Row {
    double log_ratio = 0, tokens = 0;
  };
  struct Sum {
    using Sums = Row;
    MORTISE_HD void operator()(const mortise::TokenColumns& in, std::int64_t t, Row& row) const {
      row.log_ratio += in.log_ratio(t);
      row.tokens += 1;
    }
  };
  struct Ratio {
    MORTISE_HD double operator()(const mortise::TokenColumns&, std::int64_t, const double& row) const { return row; }
  };
  template <class Passes>
  void context(const Passes& passes, const mortise::Call&) const {
    std::vector<double> ratios;
    for (const Row& row : passes.row_sums(Sum{}))
      ratios.push_back(std::exp(std::clamp(row.log_ratio / std::max(row.tokens, 1.0), -20.0, 20.0)));
    passes.set_numbers(Ratio{}, ratios);
  }

  enum { kClipped, kKl, kNone, kOver };
  static constexpr mortise::Metric metrics[] = {
      {kClipped, "actor/pg_clipfrac", mortise::Average::kTokens},
      {kKl, "actor/ppo_kl", mortise::Average::kTokens},
      {kNone, "actor/pg_clipfrac_lower", mortise::Average::kTokens},
      {kOver, "cispo_clip_ratio", mortise::Average::kRows},
  };

  template <class Real, class Meter>
  MORTISE_HD Real token(Real logp, double old_logp, double adv, double ratio, Meter& meter) const {
    const double weight = ratio < low ? low : ratio > high ? high : ratio;
    meter.count(kClipped, ratio != weight);
    meter.add(kKl, old_logp - logp);
    meter.add(kNone, 0.0);
    meter.count(kOver, (ratio > high) & (adv > 0));
    return (-adv * weight) * logp;
  }
};

}  // namespace

MORTISE_CONTEXT_LOSS("cispo_sequence", CispoSequence)
