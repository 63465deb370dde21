// m2po: second-moment trust policy optimization (arXiv:2510.01161), for data that is many updates old.
//
//   D = log_prob - old_log_prob over the update's unmasked tokens; the tokens of the largest D^2 are masked until the
//   mean of D^2 over the others is below m2_threshold;  L = -A exp(D) on those that stay, 0 elsewhere.
// Two versions differ in which tokens they count and mask:
//   default            all tokens, and one always stays, even above the threshold (AReaL's actor.m2_threshold)
//   m2_clippable_only  only tokens that PPO's clip could stop, A D > 0, and all of them may be masked (algorithm 1 of
//                      the paper, as in its authors' code and Trinity-RFT; the authors' code then also clips the ratio
//                      where the mask begins, at 0.7 .. 1.5 or wider)
// Default threshold 0.04, the paper's. The choice is a constant for the gradient; of equal tokens the first by the
// rows' names stay. The masked tokens keep their share of the aggregation's divisor, as in the paper. Traps: the
// objective has no further clip. ppo_clip adds PPO's, as in AReaL, whose D compares the sampler with the proximal
// policy.
#include <cstdint>
#include <limits>

#include <mortise/cpp/mortise.hpp>

#include "../shared/clip.h"

namespace {

struct M2po : mortise::ContextLoss {
  static constexpr const char* summary = "surrogate without the tokens of the largest squared log ratio (M2PO)";
  static constexpr const char* doc =
      "D = log_prob - old_log_prob; L = -A exp(D), 0 at the tokens of the largest D^2, so many that the mean D^2 of "
      "the update's others is below m2_threshold. arXiv:2510.01161";
  static constexpr std::uint32_t flags = MORTISE_FLAG_CONCURRENT;
  static constexpr bool accepts_cuda = true;
  static constexpr std::int32_t coupling = MORTISE_COUPLING_UPDATE;

  double m2_threshold = param("m2_threshold", 0.04, "bound of the mean squared log ratio, tau").at_least(0);
  double ppo_clip =
      param("ppo_clip", mortise::none, "half width of an additional PPO clip; not set: none, as in the paper")
          .at_least(0);
  bool clippable_only = param("m2_clippable_only", false,
                              "true: count and mask only tokens with A (log_prob - old_log_prob) > 0, possibly all of "
                              "them; false: count all tokens and always keep the nearest one (AReaL)");
  double low = 0, high = 0;

  void setup(mortise::Call) override {
    const double infinity = std::numeric_limits<double>::infinity();
    low = mortise::is_set(ppo_clip) ? 1 - ppo_clip : -infinity;
    high = mortise::is_set(ppo_clip) ? 1 + ppo_clip : infinity;
  }

  // In rising order of D^2.
  struct NearestFirst {
    bool clippable_only;
    MORTISE_HD std::uint64_t operator()(const mortise::TokenColumns& in, std::int64_t t,
                                        const mortise::RowToken&) const {
      const double d = in.log_ratio(t);
      const bool counts = !clippable_only || double(in.advantages[t]) * d > 0;
      return counts ? mortise::rising_key(d * d) : mortise::kNeverChosen;
    }
  };
  // D^2 - tau in units of 2^-32, rounded down: the mean of some D^2 is below tau where their costs are below 0.
  struct Cost {
    double threshold;
    MORTISE_HD std::int64_t operator()(std::uint64_t key) const {
      const double most = 4611686018427387904.0;  // 2^62
      const double scaled = (mortise::number_of_key(key) - threshold) * 4294967296.0;
      if (!(scaled < most)) return std::int64_t(1) << 62;  // also if it is no number
      if (scaled < -most) return -(std::int64_t(1) << 62);
      const std::int64_t whole = std::int64_t(scaled);
      return double(whole) > scaled ? whole - 1 : whole;
    }
  };

  // 1 if the token remains. Those below the threshold always do. The others remain in rising order, as long as the mean
  // stays below it.
  template <class Passes>
  void context(const Passes& passes, const mortise::Call&) const {
    mortise::Choice choice;
    choice.budget = -1;
    choice.keeps_one = !clippable_only;
    choice.never = 1.0;
    passes.set_chosen(NearestFirst{clippable_only}, Cost{m2_threshold}, choice);
  }

  enum { kMasked, kKl };
  static constexpr mortise::Metric metrics[] = {
      {kMasked, "actor/pg_clipfrac", mortise::Average::kTokens},
      {kKl, "actor/ppo_kl", mortise::Average::kTokens},
  };

  template <class Real, class Meter>
  MORTISE_HD Real token(Real logp, double old_logp, double adv, double kept, Meter& meter) const {
    const Real r = exp(clamp(logp - old_logp, -20.0, 20.0));
    meter.count(kMasked, kept == 0);
    meter.add(kKl, old_logp - logp);
    // Not select(): a log-prob that is no number must show.
    return kept * mortise::clipped_surrogate(r, adv, low, high);
  }
};

}  // namespace

MORTISE_CONTEXT_LOSS("m2po", M2po)
