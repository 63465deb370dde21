// cispo: REINFORCE with a clipped importance ratio that carries no gradient (MiniMax-M1, arXiv:2506.13585).
//
//   r = exp(clamp(log_prob - old_log_prob, -20, 20)),  L = -sg(clamp(r, 1 - low, 1 + high)) A log_prob.
// Two conventions of the cap:
//   verl, slime  the edges 1 - clip_ratio_low and 1 + clip_ratio_high, 0.2 each: the default here. The paper has no
//                lower edge: clip_ratio_low = 1 or more.
//   TRL, swift   `epsilon_high` is the cap itself and there is no lower edge: the parameter cap (5.0 recommended).
// Trap: TRL's own default of 0.2 for it cuts every ratio to 0.2.
#include "cispo.h"

namespace {

struct Cispo : mortise::CappedRatio<mortise::TokenLoss> {
  static constexpr const char* summary = "log-prob weighted by a clipped ratio without gradient (CISPO)";
  static constexpr const char* doc =
      "r = exp(log_prob - old_log_prob); L = -sg(clamp(r, 1-low, 1+high)) A log_prob, or -sg(min(r, cap)) A log_prob. "
      "arXiv:2506.13585";
  static constexpr std::uint32_t flags = MORTISE_FLAG_CONCURRENT | MORTISE_FLAG_SURROGATE_GRADIENT;
  static constexpr bool accepts_cuda = true;
  static constexpr const char* updates[] = {"cispo_clip_ratio", nullptr};
  static constexpr const char* const* update_metrics = updates;

  enum { kClipped, kKl, kNone, kOver };
  static constexpr mortise::Metric metrics[] = {
      {kClipped, "actor/pg_clipfrac", mortise::Average::kTokens},
      {kKl, "actor/ppo_kl", mortise::Average::kTokens},
      {kNone, "actor/pg_clipfrac_lower", mortise::Average::kTokens},
      {kOver, "cispo_clip_ratio", mortise::Average::kTokens},
  };

  template <class Real, class Number, class Meter>
  MORTISE_HD Real token(Real logp, Number old_logp, Number adv, Meter& meter) const {
    const Real log_ratio = clamp(logp - old_logp, -20.0, 20.0);
    const Real r = exp_inside(log_ratio);
    const Number weight = value_of(clamp(r, low, high));
    meter.count(kClipped, value_of(r) != weight);
    meter.add(kKl, -log_ratio);
    meter.add(kNone, 0.0);
    meter.count(kOver, (r > high) & (adv > 0));
    return (-adv * weight) * logp;
  }
};

}  // namespace

MORTISE_TOKEN_LOSS("cispo", Cispo)
