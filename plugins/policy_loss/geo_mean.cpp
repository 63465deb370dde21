// geo_mean: geometric-mean policy optimization (GMPO, arXiv:2507.20673).
//
//   D = log_prob - old_log_prob,  D' = sgn(A) min(sgn(A) D, sgn(A) clamp(D, -low, high)),
//   rho = exp(mean over the row of D'),  loss of the row = -mean(A) rho w,  w = exp(mean log(rollout weight)).
// The clip is per token, in log space, and one-sided: low and high are edges of D, not of the ratio. The rollout
// importance weights enter as their geometric mean, so this loss applies them instead of the engine. Aggregate with
// seq-mean-token-mean, which is the mean over rows. The default clip_ratio is verl's 0.2. The paper has 0.4, which a
// run uses if it sets none. Traps: verl's mean counts rows without tokens (actor.loss_agg_rows = "all") and has no cap;
// here the mean of D' is capped at 20.
#include <algorithm>
#include <array>
#include <cmath>

#include <mortise/cpp/mortise.hpp>

#include "../shared/clip.h"

namespace {

struct GeoMean : mortise::PublishedClip<mortise::BatchLoss> {
  static constexpr const char* summary = "geometric mean of token ratios clipped in log space (GMPO)";
  static constexpr const char* doc =
      "D' = log_prob - old_log_prob clipped on the side of A to -low or high; L of the row = -mean(A) exp(mean D'). "
      "arXiv:2507.20673 (low and high 0.4, mean over rows: a run's default)";
  static constexpr std::uint32_t flags = MORTISE_FLAG_CONCURRENT;
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

  // Whether the token's D is beyond the edge on the side of its advantage. Then D' is constant.
  bool held(double log_ratio, double adv) const {
    return adv > 0 ? log_ratio > high : adv < 0 ? log_ratio < low : true;
  }

  Row read(const mortise::LossBatch& batch, std::int64_t row) const {
    Row sums;
    for (std::int64_t t = batch.begin(row); t < batch.end(row); ++t) {
      if (batch.mask[t] == 0) continue;
      const double d = batch.log_ratio(t), adv = batch.advantages[t];
      const bool outside = d < low || d > high;
      sums.tokens += 1;
      sums.log_ratio += d;
      sums.clipped_sum += adv == 0 ? 0.0 : held(d, adv) ? (adv > 0 ? high : low) : d;
      sums.advantage += adv;
      sums.weight += double(batch.weight[t]);
      if (batch.rollout_is_weights != nullptr) sums.log_weight += std::log(double(batch.rollout_is_weights[t]) + 1e-10);
      sums.clipped_above += outside && adv > 0 ? 1.0 : 0.0;
      sums.clipped_below += outside && adv < 0 ? 1.0 : 0.0;
    }
    return sums;
  }

  void write(const mortise::LossBatch& batch, std::int64_t row, const Row& sums) const {
    if (sums.tokens == 0) return;
    constexpr double kMost = 20.0;
    const double mean = sums.clipped_sum / sums.tokens;
    const double rho = std::exp(mean > kMost ? kMost : mean);
    const double loss = -(sums.advantage / sums.tokens) * rho * std::exp(sums.log_weight / sums.tokens);
    // Each of the row's tokens has this loss, and each D' has 1/n of its mean.
    const double slope = mean > kMost ? 0.0 : sums.weight * loss / sums.tokens;
    for (std::int64_t t = batch.begin(row); t < batch.end(row); ++t) {
      if (batch.mask[t] != 0) batch.put(t, loss, held(batch.log_ratio(t), batch.advantages[t]) ? 0.0 : slope);
    }
  }

  void compute(const mortise::LossBatch& batch, const mortise::Call& call) const {
    std::vector<Row> rows(std::size_t(batch.num_rows()));
    batch.for_rows(call, [&](std::int64_t row) {
      rows[std::size_t(row)] = read(batch, row);
      write(batch, row, rows[std::size_t(row)]);
    });
    Row all;
    for (const Row& row : rows) {
      all.tokens += row.tokens;
      all.log_ratio += row.log_ratio;
      all.clipped_above += row.clipped_above;
      all.clipped_below += row.clipped_below;
    }
    if (all.tokens == 0) return;
    call.metric("actor/pg_clipfrac", all.clipped_above, all.tokens);
    call.metric("actor/ppo_kl", -all.log_ratio, all.tokens);
    call.metric("actor/pg_clipfrac_lower", all.clipped_below, all.tokens);
  }
};

}  // namespace

MORTISE_BATCH_LOSS("geo_mean", GeoMean)
