// What the clipped losses share.
#pragma once

#include <string>

#include <mortise/cpp/math.hpp>
#include <mortise/cpp/plugin.hpp>

namespace mortise {

// verl's rule for clip_ratio_low and clip_ratio_high: not set means clip_ratio.
inline double first_set(double value, double fallback) { return is_set(value) ? value : fallback; }

// A loss of kind Base with the edges of the ratio's trust band under verl's names. A lower half width of 1 or more
// means no lower edge.
template <class Base>
struct Clipped : Base {
  double clip_ratio = Base::param("clip_ratio", 0.2, "half width of the trust band of the ratio, epsilon").at_least(0);
  double clip_ratio_low =
      Base::param("clip_ratio_low", none, "lower half width, epsilon_low; not set: clip_ratio").at_least(0);
  double clip_ratio_high =
      Base::param("clip_ratio_high", none, "upper half width, epsilon_high; not set: clip_ratio").at_least(0);
  double low = 0, high = 0;  // the edges themselves

  void setup(Call) override {
    low = 1 - first_set(clip_ratio_low, clip_ratio);
    high = 1 + first_set(clip_ratio_high, clip_ratio);
  }
};

// The half widths of the paper, for losses whose clip_ratio defaults to verl's 0.2 instead. A run uses published_X if
// the config sets no X (core/learn/objective/loss_settings.h); the plugin itself reads only X.
template <class Base>
struct PublishedClip : Base {
  double published_clip_ratio_low, published_clip_ratio_high;

  template <class... Args>
  PublishedClip(double paper_low, double paper_high, Args... args)
      : Base(args...),
        published_clip_ratio_low(Base::param("published_clip_ratio_low", paper_low,
                                             "the paper's clip_ratio_low; a run uses it if the config sets none")
                                     .at_least(0)),
        published_clip_ratio_high(Base::param("published_clip_ratio_high", paper_high,
                                              "the paper's clip_ratio_high; a run uses it if the config sets none")
                                      .at_least(0)) {}
};

// PPO's clipped surrogate of a token with ratio r.
template <class Real>
MORTISE_HD MORTISE_INLINE Real clipped_surrogate(Real r, double adv, double low, double high) {
  return max(-adv * r, -adv * clamp(r, low, high));
}

// The parameter with which a loss asks for its paper's aggregation. The engine reads the declared default when
// actor.loss_agg_mode is "auto" (core/plugin/host/kinds/policy_loss.h); the plugin itself does not aggregate.
inline std::string own_aggregation(Param<std::string> mode) {
  return mode.choices({"token-mean", "token-sum", "seq-mean-token-mean", "seq-mean-token-sum",
                       "seq-mean-token-sum-norm", "prompt-mean"});
}
inline constexpr const char* kAggregationDoc = "aggregation if actor.loss_agg_mode is auto";

}  // namespace mortise
