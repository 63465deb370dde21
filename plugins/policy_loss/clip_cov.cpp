// clip_cov: PPO's clip, and no gradient at a few random tokens of high covariance (arXiv:2505.22617, Clip-Cov).
//
//   L = max(-A r, -A clamp(r, 1 - low, 1 + high)),  cov = (A - mean A) (log_prob - mean log_prob) over the update;
//   L = 0 at max(1, int(clip_cov_ratio N)) tokens drawn from those that PPO does not clip and clip_cov_lb < cov <
//   clip_cov_ub; at all of them where they are fewer.
// Defaults 2e-4, 1 and 5 as in the paper and verl. The draw comes from the run's seed, step, update, row and token.
// Traps: verl chooses in each micro-batch, from torch's global generator, and does not clamp the log ratio (here +-20).
#include <algorithm>
#include <cstdint>
#include <vector>

#include <mortise/cpp/mortise.hpp>

#include "../shared/clip.h"
#include "token_covariance.h"

namespace {

struct ClipCov : mortise::Clipped<mortise::ContextLoss> {
  static constexpr const char* summary = "clipped surrogate without random tokens of high covariance (Clip-Cov)";
  static constexpr const char* doc =
      "L = max(-A r, -A clamp(r, 1-low, 1+high)), 0 at a share clip_cov_ratio of the update's tokens, drawn where "
      "clip_cov_lb < (A - mean A)(log_prob - mean log_prob) < clip_cov_ub. arXiv:2505.22617";
  static constexpr std::uint32_t flags = MORTISE_FLAG_CONCURRENT;
  static constexpr bool accepts_cuda = true;
  static constexpr std::int32_t coupling = MORTISE_COUPLING_UPDATE;

  double clip_cov_ratio = param("clip_cov_ratio", 2e-4, "share of the tokens that are dropped").above(0).at_most(1);
  double clip_cov_lb = param("clip_cov_lb", 1.0, "least covariance of a token that may be dropped, exclusive");
  double clip_cov_ub = param("clip_cov_ub", 5.0, "greatest covariance of a token that may be dropped, exclusive");

  void setup(mortise::Call call) override {
    Clipped::setup(call);
    if (!(clip_cov_lb < clip_cov_ub))
      mortise::fail(MORTISE_INVALID_ARGUMENT, "clip_cov_lb must be below clip_cov_ub: no token lies between them");
  }

  // Random keys for the tokens that may be dropped.
  struct Draw {
    mortise::TokenCovariance covariance;
    double least, most, low, high;
    MORTISE_HD std::uint64_t operator()(const mortise::TokenColumns& in, std::int64_t t,
                                        const mortise::RowToken& row) const {
      const double cov = covariance(in, t);
      if (!(cov > least && cov < most)) return mortise::kNeverChosen;
      // The ratio of token(), so that both find the same tokens clipped.
      const double adv = in.advantages[t], r = mortise::detail::exp_of(in.log_ratio(t));
      const bool clipped = (adv > 0 && r > high) || (adv < 0 && r < low);
      return clipped ? mortise::kNeverChosen : mortise::random_key(row.number, std::uint64_t(row.index));
    }
  };
  // A seed for each row. It counts the row's place among the names of all rows, so that neither the order of the call nor
  // the names themselves decide.
  static std::vector<std::uint64_t> seeds_of(const mortise::PassCall& of) {
    std::vector<std::uint64_t> seeds(std::size_t(of.layout.num_rows));
    std::uint64_t place = 0;
    for (const std::int64_t row : of.rows_by_name())
      of.call.random(place++, std::uint64_t(of.update_index) << 32,
                     mortise::Span<std::uint64_t>(&seeds[std::size_t(row)], 1));
    return seeds;
  }

  // 0 at the dropped tokens, else 1.
  template <class Passes>
  void context(const Passes& passes, const mortise::Call&) const {
    const mortise::UpdateSums all = mortise::UpdateSums::of(passes);
    mortise::Choice choice;
    choice.budget = std::max<std::int64_t>(1, std::int64_t(clip_cov_ratio * all.tokens));
    choice.chosen = 0.0;
    choice.others = choice.never = 1.0;
    passes.set_chosen(Draw{all.covariance(), clip_cov_lb, clip_cov_ub, low, high}, mortise::CostsOne{}, choice,
                      seeds_of(passes));
  }

  enum { kDropped, kKl };
  static constexpr mortise::Metric metrics[] = {
      {kDropped, "actor/pg_clipfrac", mortise::Average::kTokens},
      {kKl, "actor/ppo_kl", mortise::Average::kTokens},
  };

  template <class Real, class Meter>
  MORTISE_HD Real token(Real logp, double old_logp, double adv, double kept, Meter& meter) const {
    const Real r = exp(clamp(logp - old_logp, -20.0, 20.0));
    meter.count(kDropped, kept == 0);
    meter.add(kKl, old_logp - logp);
    return kept * mortise::clipped_surrogate(r, adv, low, high);
  }
};

}  // namespace

MORTISE_CONTEXT_LOSS("clip_cov", ClipCov)
