// A pack with everything the SDK offers, for plugin_test.cpp: all parameter types, errors of all sorts, both ways in
// which a sequence loss hands its slope to the tokens, a KL estimator corrected by the ratio.
#include <mortise/cpp/mortise.hpp>

namespace {

struct Params : mortise::Reward {
  static constexpr const char* summary = "every type of \"parameter\"\twith odd characters";
  static constexpr const char* doc = "line one\nline two \\ backslash";
  static constexpr std::uint32_t flags = MORTISE_FLAG_EXPERIMENTAL | MORTISE_FLAG_NEEDS_NETWORK;
  static constexpr const char* requires_inputs[] = {"values", "ref_log_prob", nullptr};
  static constexpr const char* consumes[] = {"rollout_is_weights", nullptr};

  double share = param("share", 0.2, "a share").range(0, 1);
  double unset = param("unset", mortise::none, "falls back to share").at_least(0);
  std::int64_t count = param("count", 3, "a number");
  bool flag = param("flag", true, "yes or no");
  std::string mode = param("mode", "soft", "how").choices({"soft", "hard"});
  double must = param<double>("must", mortise::required, "no default");

  double score(const mortise::Row& row) {
    row.note("seen", 1);
    return share + double(count) + (flag ? 100 : 0) + (mode == "hard" ? 1000 : 0) +
           (mortise::is_set(unset) ? unset : 0) + must;
  }
};

struct Throws : mortise::Reward {
  std::string what = param("what", "none", "what to throw").choices({"none", "failure", "text", "alloc", "number"});

  void setup(mortise::Call) override {
    if (what == "failure") mortise::fail(MORTISE_UNAVAILABLE, "closed today");
    if (what == "text") throw std::runtime_error("plain text");
    if (what == "alloc") throw std::bad_alloc();
    if (what == "number") throw 3;
  }
  float score(const mortise::Row& row) const {
    if (row.completion() == "bad") throw std::runtime_error("cannot score this");
    return 0.5F;
  }
};

struct GroupMean : mortise::BatchReward {
  static constexpr std::int32_t granularity = MORTISE_REWARD_GROUP;
  void score(const std::vector<mortise::Row>& rows, mortise::Span<double> rewards, mortise::Call) {
    for (std::int64_t i = 0; i < rewards.size(); ++i) rewards[i] = double(rows.size());
  }
};

// The anchors of the README: a loss in a few lines, without metrics.
struct Clip : mortise::TokenLoss {
  double eps = param("clip_ratio", 0.2, "half width of the trust band").range(0, 1);
  template <class Real>
  Real token(Real logp, double old_logp, double adv) const {
    const Real r = exp(logp - old_logp);
    return max(-adv * r, -adv * clamp(r, 1 - eps, 1 + eps));
  }
};

// The true gradient of a row's mean.
struct RowRatio : mortise::SequenceLoss {
  template <class Real>
  Real sequence(Real mean_log_ratio, double adv) const {
    return -adv * exp(mean_log_ratio);
  }
};

struct RatioK3 : mortise::KlEstimator {
  static constexpr const char* requires_inputs[] = {"old_log_prob", nullptr};
  template <class Real>
  Real token(Real logp, double ref, double old_logp) const {
    const Real d = ref - logp;
    return exp(logp - old_logp) * (exp(d) - d - 1.0);
  }
};

struct TokenThrows : mortise::TokenLoss {
  template <class Real>
  Real token(Real logp, double, double adv) const {
    if (adv == 13.0) throw std::domain_error("thirteen");
    return logp;
  }
};

}  // namespace

MORTISE_PACK(MORTISE_REWARD("params", Params) MORTISE_REWARD("throws", Throws) MORTISE_REWARD("group_mean", GroupMean)
                 MORTISE_TOKEN_LOSS("clip", Clip) MORTISE_SEQUENCE_LOSS("row_ratio", RowRatio)
                     MORTISE_KL_ESTIMATOR("ratio_k3", RatioK3) MORTISE_TOKEN_LOSS("token_throws", TokenThrows))
