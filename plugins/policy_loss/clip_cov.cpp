// clip_cov: PPO's clip, and no gradient at a few random tokens of high covariance (arXiv:2505.22617, Clip-Cov).
//
//   L = max(-A r, -A clamp(r, 1 - low, 1 + high)),  cov = (A - mean A) (log_prob - mean log_prob) over the update;
//   L = 0 at max(1, int(clip_cov_ratio N)) tokens drawn from those that PPO does not clip and clip_cov_lb < cov <
//   clip_cov_ub; at all of them where they are fewer.
// Defaults 2e-4, 1 and 5 as in the paper and verl. The draw comes from the run's seed, step, update, row and token.
// Traps: verl chooses in each micro-batch, from torch's global generator, and does not clamp the log ratio (here +-20).
#include <algorithm>

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

  enum Kind : std::uint8_t { kMasked, kStays, kMayBeDropped };
  struct KindOf {
    mortise::TokenCovariance covariance;
    double least, most, low, high;
    MORTISE_HD Kind operator()(const mortise::TokenColumns& in, std::int64_t t) const {
      const double cov = covariance(in, t);
      if (!(cov > least && cov < most)) return kStays;
      // The ratio of token(), so that both find the same tokens clipped.
      const double adv = in.advantages[t], r = mortise::detail::exp_of(in.log_ratio(t));
      const bool clipped = (adv > 0 && r > high) || (adv < 0 && r < low);
      return clipped ? kStays : kMayBeDropped;
    }
  };
  struct Candidate {
    std::uint64_t draw;
    std::size_t token;
  };
  // The draw counts the row's place among the names of all rows, so that neither the order of the call nor the names
  // themselves decide.
  static std::vector<Candidate> candidates(const mortise::PassCall& of, const std::vector<Kind>& kinds) {
    std::vector<Candidate> found;
    std::vector<std::uint64_t> unmasked(std::size_t(of.layout.num_rows));  // tokens so far, by the row's place
    of.by_name([&](std::size_t place, std::size_t t) {
      if (kinds[t] == kMasked) return;
      ++unmasked[place];
      if (kinds[t] != kMayBeDropped) return;
      std::uint64_t draw = 0;
      const std::uint64_t counter = (std::uint64_t(of.update_index) << 32) + unmasked[place];
      of.call.random(place, counter, mortise::Span<std::uint64_t>(&draw, 1));
      found.push_back({draw, t});
    });
    return found;
  }

  // 0 at the dropped tokens, else 1.
  template <class Passes>
  void context(const Passes& passes, const mortise::Call&) const {
    const mortise::UpdateSums all = mortise::UpdateSums::of(passes);
    const KindOf kind_of{all.covariance(), clip_cov_lb, clip_cov_ub, low, high};
    std::vector<Candidate> found = candidates(passes, passes.values(kind_of, kMasked));
    const auto wanted = std::max<std::int64_t>(1, std::int64_t(clip_cov_ratio * all.tokens));
    if (wanted < std::int64_t(found.size())) {
      std::nth_element(found.begin(), found.begin() + wanted, found.end(),
                       [](const Candidate& a, const Candidate& b) { return a.draw < b.draw; });
      found.resize(std::size_t(wanted));
    }
    std::vector<double> kept(std::size_t(passes.layout.num_tokens), 1.0);
    for (const Candidate& candidate : found) kept[candidate.token] = 0.0;
    passes.set_numbers(std::move(kept));
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
