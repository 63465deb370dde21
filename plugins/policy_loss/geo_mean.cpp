// geo_mean: geometric-mean policy optimization (GMPO, arXiv:2507.20673).
//
//   D = log_prob - old_log_prob,  D' = sgn(A) min(sgn(A) D, sgn(A) clamp(D, -low, high)),
//   rho = exp(mean over the row of D'),  loss of the row = -mean(A) rho w,  w = exp(mean log(rollout weight)).
// The clip is per token, in log space, and one-sided: low and high are edges of D, not of the ratio. The rollout
// importance weights enter as their geometric mean, so this loss applies them instead of the engine. Aggregate with
// seq-mean-token-mean, which is the mean over rows. The default clip_ratio is verl's 0.2. The paper has 0.4, which a
// run uses if it sets none. Traps: verl's mean counts rows without tokens (actor.loss_agg_rows = "all") and has no cap;
// here the mean of D' is capped at 20.
#include <cmath>

#include <mortise/cpp/mortise.hpp>

#include "../shared/clip.h"

namespace {

struct GeoMean : mortise::PublishedClip<mortise::PassLoss> {
  static constexpr const char* summary = "geometric mean of token ratios clipped in log space (GMPO)";
  static constexpr const char* doc =
      "D' = log_prob - old_log_prob clipped on the side of A to -low or high; L of the row = -mean(A) exp(mean D'). "
      "arXiv:2507.20673 (low and high 0.4, mean over rows: a run's default)";
  static constexpr std::uint32_t flags = MORTISE_FLAG_CONCURRENT;
  static constexpr bool accepts_cuda = true;
  static constexpr std::int32_t coupling = MORTISE_COUPLING_ROW;
  static constexpr const char* consumes[] = {"rollout_is_weights", nullptr};

  double clip_ratio = param("clip_ratio", 0.2, "half width of the band of the log ratio").at_least(0);
  double clip_ratio_low = param("clip_ratio_low", mortise::none, "lower half width; not set: clip_ratio").at_least(0);
  double clip_ratio_high = param("clip_ratio_high", mortise::none, "upper half width; not set: clip_ratio").at_least(0);
  double low = 0, high = 0;

  GeoMean() : PublishedClip(0.4, 0.4) {}

  void setup(mortise::Call) override {
    low = -mortise::first_set(clip_ratio_low, clip_ratio);
    high = mortise::first_set(clip_ratio_high, clip_ratio);
  }

  struct Row {
    double tokens = 0, log_ratio = 0, clipped_sum = 0, advantage = 0, log_weight = 0, weight = 0;
    double clipped_above = 0, clipped_below = 0;
  };
  // The loss of each token, and the slope of those that are not held.
  struct RowLoss {
    double loss = 0, slope = 0;
  };

  // The edges of D.
  struct Band {
    double low, high;
    // Whether the token's D is beyond the edge on the side of its advantage. Then D' is constant.
    MORTISE_HD bool holds(double log_ratio, double adv) const {
      return adv > 0 ? log_ratio > high : adv < 0 ? log_ratio < low : true;
    }
  };
  struct Sum {
    using Sums = Row;
    Band band;
    MORTISE_HD void operator()(const mortise::TokenColumns& in, std::int64_t t, Row& sums) const {
      const double d = in.log_ratio(t), adv = in.advantages[t];
      const bool outside = d < band.low || d > band.high;
      sums.tokens += 1;
      sums.log_ratio += d;
      sums.clipped_sum += adv == 0 ? 0.0 : band.holds(d, adv) ? (adv > 0 ? band.high : band.low) : d;
      sums.advantage += adv;
      sums.weight += double(in.weight[t]);
      if (in.rollout_is_weights != nullptr)
        sums.log_weight += mortise::detail::log_of(double(in.rollout_is_weights[t]) + 1e-10);
      sums.clipped_above += outside && adv > 0 ? 1.0 : 0.0;
      sums.clipped_below += outside && adv < 0 ? 1.0 : 0.0;
    }
  };
  struct Value {
    Band band;
    MORTISE_HD mortise::TokenValue operator()(const mortise::TokenColumns& in, std::int64_t t,
                                              const RowLoss& row) const {
      const bool held = band.holds(in.log_ratio(t), in.advantages[t]);
      return {row.loss, held ? 0.0 : in.unless_weightless(t, row.slope)};
    }
  };

  static RowLoss loss_of(const Row& sums) {
    if (sums.tokens == 0) return {};
    constexpr double kMost = 20.0;
    const double mean = sums.clipped_sum / sums.tokens;
    const double rho = std::exp(mean > kMost ? kMost : mean);
    const double loss = -(sums.advantage / sums.tokens) * rho * std::exp(sums.log_weight / sums.tokens);
    // Each of the row's tokens has this loss, and each D' has 1/n of its mean.
    return {loss, mean > kMost ? 0.0 : sums.weight * loss / sums.tokens};
  }

  template <class Passes>
  void compute(const Passes& passes, const mortise::Call& call) const {
    const Band band{low, high};
    std::vector<RowLoss> losses;
    Row all;
    for (const Row& row : passes.row_sums(Sum{band})) {
      losses.push_back(loss_of(row));
      all.tokens += row.tokens;
      all.log_ratio += row.log_ratio;
      all.clipped_above += row.clipped_above;
      all.clipped_below += row.clipped_below;
    }
    passes.put(Value{band}, losses);
    if (all.tokens == 0) return;
    call.metric("actor/pg_clipfrac", all.clipped_above, all.tokens);
    call.metric("actor/ppo_kl", -all.log_ratio, all.tokens);
    call.metric("actor/pg_clipfrac_lower", all.clipped_below, all.tokens);
  }
};

}  // namespace

MORTISE_PASS_LOSS("geo_mean", GeoMean)
