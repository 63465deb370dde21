// The museum's packs on the C++ layer: plugins "piece", which compute what those of museum.c compute. -DLOSS, -DKL and
// -DROWS choose the kinds: small packs instead of one that is large without optimisation.
#include <mortise/cpp/environment.hpp>
#include <mortise/cpp/mortise.hpp>

#include <algorithm>
#include <vector>

namespace {

#if LOSS
struct Loss : mortise::TokenLoss {
  static constexpr const char* summary = "a piece of the museum";
  double scale = param("scale", 1.5, "factor");
  enum { kTokens };
  static constexpr mortise::Metric metrics[] = {{kTokens, "museum/tokens", mortise::Average::kTokens}};
  template <class Real, class Number, class Meter>
  Real token(Real logp, Number old_logp, Number adv, Meter& meter) const {
    const Real d = logp - old_logp;
    meter.add(kTokens, 1.0);
    return -(scale * adv) * (1.0 + d + d * d * 0.5);
  }
};

#endif
#if KL
struct Kl : mortise::KlEstimator {
  static constexpr const char* summary = "a piece of the museum";
  double scale = param("scale", 1.5, "factor");
  template <class Real>
  Real token(Real logp, double ref_logp) const {
    const Real d = logp - ref_logp;
    return scale * d * d * 0.5;
  }
};

#endif
#if ROWS
struct Advantage : mortise::OutcomeEstimator {
  static constexpr const char* summary = "a piece of the museum";
  static constexpr std::uint32_t flags = 0;
  std::int64_t number = param("number", 2, "summand");
  void group(const mortise::Group& group, mortise::Span<double> advantages) const override {
    double sum = 0;
    for (const double reward : group.rewards) sum += reward;
    for (std::int64_t i = 0; i < advantages.size(); ++i)
      advantages[i] = group.rewards[i] - sum / double(group.rewards.size()) + double(number);
  }
};

struct Reward : mortise::Reward {
  static constexpr const char* summary = "a piece of the museum";
  double scale = param("scale", 1.5, "factor");
  std::int64_t number = param("number", 2, "summand");
  bool flip = param("flip", false, "changes the sign");
  std::string column = param("column", "answer", "column of the answer");
  double score(const mortise::Row& row) const {
    const auto answer = row.text(column);
    if (!answer) return mortise::not_applicable;
    const double value =
        double(row.completion().size()) * scale + double(number) + (*answer == row.completion() ? 100 : 0);
    return flip ? -value : value;
  }
};

struct Rollout : mortise::RolloutBackend {
  static constexpr const char* summary = "a piece of the museum";
  std::int64_t number = param("number", 2, "size of the vocabulary");
  struct Work {
    std::int64_t request_id, row, samples, length;
    std::vector<std::int64_t> prompt;
  };
  std::vector<Work> waiting;
  std::int64_t version = 0;

  void set_version(std::int64_t now, mortise::Call) override { version = now; }
  std::uint64_t submit(mortise::Span<const mortise_rollout_request* const> requests, mortise::Call) override {
    for (const mortise_rollout_request* r : requests)
      waiting.push_back({r->request_id, r->first_row_id, r->num_samples, r->sampling->max_new_tokens,
                         std::vector<std::int64_t>(r->prompt_ids, r->prompt_ids + r->num_prompt_ids)});
    return std::uint64_t(requests.size());
  }
  std::uint64_t poll(const mortise_rollout_sink& sink, std::int64_t, mortise::Call) override {
    for (const Work& work : waiting) {
      for (std::int64_t s = 0; s < work.samples; ++s) {
        std::vector<std::int64_t> ids;
        std::vector<float> log_prob;
        for (std::int64_t j = 0; j < work.length; ++j) {
          ids.push_back((work.prompt[std::size_t(j) % work.prompt.size()] * 7 + work.row + 3 * s + j) % number);
          log_prob.push_back(-float(j + 1) / 8);
        }
        mortise_rollout_sequence sequence = {};
        sequence.struct_size = sizeof sequence;
        sequence.finish_reason = MORTISE_FINISH_LENGTH;
        sequence.request_id = work.request_id;
        sequence.sample_index = s;
        sequence.weight_version = version;
        sequence.num_ids = std::int64_t(ids.size());
        sequence.ids = ids.data();
        sequence.log_prob = log_prob.data();
        sink.sequence(sink.context, &sequence);
      }
    }
    waiting.clear();
    return 0;
  }
  void abort(std::int64_t, mortise::Call) override { waiting.clear(); }
};
struct Environment : mortise::Environment {
  static constexpr const char* summary = "a piece of the museum";
  static constexpr bool keeps_episodes = false;
  std::int64_t number = param("number", 2, "factor");
  mortise::Observation step(const mortise::EpisodeAction& action, mortise::Call) override {
    mortise::Observation out;
    out.done = action.turn >= 1;
    out.reward = double(number * std::int64_t(action.ids.size())) + double(action.text.size()) / 8;
    if (!out.done) out.messages = "[{\"role\":\"user\",\"content\":\"more\"}]";
    return out;
  }
};
#endif

}  // namespace

#if LOSS
MORTISE_TOKEN_LOSS("piece", Loss)
#endif
#if KL
MORTISE_KL_ESTIMATOR("piece", Kl)
#endif
#if ROWS
MORTISE_ADVANTAGE_ESTIMATOR("piece", Advantage)
MORTISE_REWARD("piece", Reward)
MORTISE_ROLLOUT_BACKEND("piece", Rollout)
MORTISE_ENVIRONMENT("piece", Environment)
#endif
MORTISE_PACK()
