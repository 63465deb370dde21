// The loss and the reward that rust/ has in Rust: what bench_languages compares.
#include <mortise/cpp/mortise.hpp>

namespace {

struct Clip : mortise::TokenLoss {
  static constexpr const char* summary = "clipped surrogate";
  double clip_ratio = param("clip_ratio", 0.2, "half width of the trust band of r").range(0, 1);
  enum { kClipped };
  static constexpr mortise::Metric metrics[] = {{kClipped, "actor/pg_clipfrac", mortise::Average::kTokens}};
  template <class Real, class Meter>
  Real token(Real logp, double old_logp, double adv, Meter& meter) const {
    const Real r = exp(clamp(logp - old_logp, -20.0, 20.0));
    const Real plain = -adv * r;
    const Real clipped = -adv * clamp(r, 1.0 - clip_ratio, 1.0 + clip_ratio);
    meter.count(kClipped, clipped > plain);
    return max(plain, clipped);
  }
};

struct Vowels : mortise::Reward {
  static constexpr const char* summary = "share of vowels in the completion";
  double score(const mortise::Row& row) const {
    const std::string_view text = row.completion();
    if (text.empty()) return mortise::not_applicable;
    double vowels = 0;
    for (const char c : text) vowels += c == 'a' || c == 'e' || c == 'i' || c == 'o' || c == 'u' ? 1 : 0;
    return vowels / static_cast<double>(text.size());
  }
};

}  // namespace

MORTISE_PACK(MORTISE_TOKEN_LOSS("clip", Clip) MORTISE_REWARD("vowels", Vowels))
