// fipo: future-KL influenced policy optimization (arXiv:2603.19835), PPO whose tokens count by what follows them.
//
//   D = log_prob - old_log_prob,  F_t = sum over k >= t of gamma^(k - t) D_k, without tokens whose ratio is above
//   delta, gamma = 2^(-1 / fipo_decay_rate),  w = clamp(exp(F), 1 or 1 - range, 1 + range), and clamp(w, 0.8, 1) where
//   A < 0 and r > fipo_safety_threshold;  L = sg(w) max(-A min(r, delta), -A clamp(r, 1 - low, 1 + high)).
// Names and defaults are ms-swift's; the paper's runs have delta = 10 and high 0.28. Distances count unmasked tokens.
// Aggregated by token-mean by default. Log ratios of r and F are clamped to +-20. Traps: ms-swift counts
// masked tokens inside a row as distance; verl's recipe also drops rows with more than one token at delta, which is not
// done here.
#include <cmath>
#include <limits>

#include <mortise/cpp/mortise.hpp>

#include "../shared/clip.h"

namespace {

struct Fipo : mortise::Clipped<mortise::ContextLoss> {
  static constexpr const char* summary = "clipped surrogate weighted by the discounted future log ratio (FIPO)";
  static constexpr const char* doc =
      "F_t = sum_(k>=t) gamma^(k-t) (log_prob - old_log_prob)_k, w = clamp(exp(F), 1, 1 + range); L = sg(w) max(-A r, "
      "-A clamp(r, 1-low, 1+high)). arXiv:2603.19835";
  static constexpr std::uint32_t flags = MORTISE_FLAG_CONCURRENT | MORTISE_FLAG_SURROGATE_GRADIENT;
  static constexpr bool accepts_cuda = true;

  double delta = param("delta", mortise::none,
                       "two-sided clip of the ratio, which also excludes tokens above it from F; not set: off")
                     .at_least(0);
  double decay_rate = param("fipo_decay_rate", 32.0, "number of tokens after which the influence halves").above(0);
  double clip_range = param("fipo_clip_range", 0.2, "half width of the band of w; inf: not clipped").at_least(0);
  bool clip_high_only = param("fipo_clip_high_only", true, "the band of w begins at 1");
  double safety =
      param("fipo_safety_threshold", 4.0, "ratio above which w is at most 1 where A < 0; inf: off").at_least(0);
  std::string loss_agg_mode = mortise::own_aggregation(param("loss_agg_mode", "token-mean", mortise::kAggregationDoc));
  double gamma = 0, cap = 0, w_low = 0, w_high = 0;

  void setup(mortise::Call call) override {
    Clipped::setup(call);
    const double infinity = std::numeric_limits<double>::infinity();
    gamma = std::exp2(-1.0 / decay_rate);
    cap = mortise::first_set(delta, infinity);
    safety = mortise::first_set(safety, infinity);
    const bool clips = std::isfinite(clip_range);
    w_low = !clips ? 0.0 : clip_high_only ? 1.0 : 1.0 - clip_range;
    w_high = clips ? 1.0 + clip_range : infinity;
  }

  struct LogRatio {
    double most;
    MORTISE_HD double operator()(const mortise::TokenColumns& in, std::int64_t t) const {
      const double d = in.log_ratio(t);
      return d > most ? 0.0 : d;
    }
  };
  // F of every token.
  template <class Passes>
  void context(const Passes& passes, const mortise::Call&) const {
    passes.set_decayed_sums(LogRatio{std::log(cap)}, gamma);
  }

  enum { kClipped, kKl, kFuture, kWeight, kSafe };
  static constexpr mortise::Metric metrics[] = {
      {kClipped, "actor/pg_clipfrac", mortise::Average::kTokens},
      {kKl, "actor/ppo_kl", mortise::Average::kTokens},
      {kFuture, "fipo/future_kl_mean", mortise::Average::kTokens},
      {kWeight, "fipo/influence_weight_mean", mortise::Average::kTokens},
      {kSafe, "fipo/safety_keep_ratio", mortise::Average::kTokens},
  };

  static MORTISE_HD MORTISE_INLINE double bounded(double x, double least, double most) {
    return select(x < least, least, select(x > most, most, x));
  }

  template <class Real, class Meter>
  MORTISE_HD MORTISE_INLINE Real token(Real logp, double old_logp, double adv, double future, Meter& meter) const {
    const Real log_ratio = clamp(logp - old_logp, -20.0, 20.0);
    const Real r = exp(log_ratio);
    const double unsafe = select(adv < 0, select(r > safety, 1.0, 0.0), 0.0);
    const double influence = bounded(mortise::detail::exp_of(bounded(future, -20.0, 20.0)), w_low, w_high);
    const double w = select(unsafe > 0, bounded(influence, 0.8, 1.0), influence);
    const Real plain = -adv * clamp(r, 0.0, cap);
    const Real clipped = -adv * clamp(r, low, high);
    meter.count(kClipped, clipped > plain);
    meter.add(kKl, -log_ratio);
    meter.add(kFuture, future);
    meter.add(kWeight, w);
    meter.add(kSafe, 1.0 - unsafe);
    return w * max(plain, clipped);
  }
};

}  // namespace

MORTISE_CONTEXT_LOSS("fipo", Fipo)
