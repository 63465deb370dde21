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
  double rate = param("rate", 0.5, "exclusive ends").above(0).below(1);
  std::int64_t rows = param("rows", 1, "an exclusive end of a whole number").above(0);
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

// A quarter of each id to its token, and 0.5 to the row, which counts at the last one.
struct Steps : mortise::Reward {
  static constexpr std::uint32_t flags = MORTISE_FLAG_TOKEN_REWARDS;
  double score(const mortise::Row& row) const {
    const auto ids = row.completion_ids();
    const auto tokens = row.token_rewards();
    for (std::int64_t t = 0; t < tokens.size(); ++t) tokens[t] = float(ids[t]) / 4;
    return 0.5;
  }
};

// The fields of a row, for the test host of authors.
struct Echo : mortise::Reward {
  double score(const mortise::Row& row) const {
    const std::string_view asked = row.completion();
    const auto or_none = [](auto value) { return value ? double(*value) : mortise::not_applicable; };
    if (asked == "level") return or_none(row.integer("level"));
    if (asked == "level as number") return or_none(row.number("level"));
    if (asked == "share") return or_none(row.number("share"));
    if (asked == "tags") return double(row.json("tags").value_or("").size());
    if (asked == "messages") return double(row.messages().size());
    if (asked == "prompt ids") return double(row.prompt_ids().size());
    if (asked == "finish") return double(row.finish_reason());
    if (asked == "sample") return double(row.group_index() * 100 + row.sample_index() * 10 + row.row_id());
    if (asked == "step") return double(row.step()) + (row.is_validation() ? 0.5 : 0);
    if (asked == "most") return double(row.max_response_length());
    return mortise::not_applicable;
  }
};

// A data column read in one of the four ways: the number itself, or the size of the text.
struct Cell : mortise::Reward {
  std::string column = param("column", "answer", "data column");
  std::string as = param("as", "integer", "accessor").choices({"text", "integer", "number", "json"});
  double score(const mortise::Row& row) const {
    row.note("has_type", double(row.type(column).value_or(-1)));
    if (as == "integer") return double(row.integer(column).value_or(-1000));
    if (as == "number") return row.number(column).value_or(-1000);
    const auto text = as == "text" ? row.text(column) : row.json(column);
    if (as == "text" && text != row.text(column)) mortise::fail(MORTISE_INTERNAL, "two reads differ");
    return text ? double(text->size()) : mortise::not_applicable;
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

// Every kind of average, for added and for counted values.
struct Metered : mortise::TokenLoss {
  enum { kGap, kUp };
  static constexpr mortise::Metric metrics[] = {
      {kGap, "gap/tokens", mortise::Average::kTokens},
      {kGap, "gap/rows", mortise::Average::kRows},
      {kGap, "gap/lowest_row", mortise::Average::kLowestRow},
      {kGap, "gap/highest_row", mortise::Average::kHighestRow},
      {kGap, "gap/lowest", mortise::Average::kLowest},
      {kGap, "gap/highest", mortise::Average::kHighest},
      {kUp, "up/tokens", mortise::Average::kTokens},
      {kUp, "up/lowest_row", mortise::Average::kLowestRow},
      {kGap, "gap_and_up/tokens", mortise::Average::kTokens, kUp},
      {kGap, "gap_and_up/rows", mortise::Average::kRows, kUp},
  };
  template <class Real, class Meter>
  Real token(Real logp, double old_logp, double adv, Meter& meter) const {
    return measured(logp, old_logp, adv, meter);
  }

 protected:
  template <class Real, class Number, class Meter>
  Real measured(Real logp, Number old_logp, Number adv, Meter& meter) const {
    meter.add(kGap, logp - old_logp);
    meter.count(kUp, logp > old_logp);
    return (logp - old_logp) * adv;
  }
};

// The same in float32.
struct MeteredSingle : Metered {
  template <class Real, class Number, class Meter>
  Real token(Real logp, Number old_logp, Number adv, Meter& meter) const {
    static_assert(std::is_same_v<Number, mortise::Single>);
    return measured(logp, old_logp, adv, meter);
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

// Holds a copy of the weights: answers with the sum of each, in the order in which they came.
struct Holder : mortise::WeightedRolloutBackend {
  static constexpr const char* summary = "answers with sums over the weights that it was given";
  std::vector<std::int64_t> sums, coming;
  std::vector<std::pair<std::int64_t, std::int64_t>> waiting;  // request, sample
  std::int64_t version = 0, next_version = 0, held_version = -1;

  void set_version(std::int64_t v, mortise::Call) override { version = v; }
  void begin_update(std::int64_t v, mortise::Call) override {
    next_version = v;
    coming.clear();
  }
  void update_weight(const mortise::WeightShard& shard, mortise::Call) override {
    if (shard.name == "refused") mortise::fail(MORTISE_INVALID_ARGUMENT, "no place for it");
    if (!shard.whole()) mortise::fail(MORTISE_UNIMPLEMENTED, std::string(shard.name) + ": whole weights only");
    std::int64_t size = 1;
    for (const std::int64_t n : shard.shape) size *= n;
    const auto* values = static_cast<const float*>(mortise_tensor_data(&shard.data));
    double sum = 0;
    for (std::int64_t i = 0; i < size; ++i) sum += std::abs(double(values[i]));
    coming.push_back(std::int64_t(sum));
  }
  void end_update(mortise::Call call) override {
    sums = coming;
    held_version = next_version;
    call.log(MORTISE_LOG_INFO,
             "holds " + std::to_string(sums.size()) + " weights of version " + std::to_string(held_version));
  }
  std::uint64_t submit(mortise::Span<const mortise_rollout_request* const> requests, mortise::Call) override {
    if (held_version != version) mortise::fail(MORTISE_FAILED_PRECONDITION, "its weights are of another version");
    for (const mortise_rollout_request* r : requests)
      for (std::int64_t s = 0; s < r->num_samples; ++s) waiting.emplace_back(r->request_id, s);
    return std::uint64_t(requests.size());
  }
  std::uint64_t poll(const mortise_rollout_sink& sink, std::int64_t, mortise::Call) override {
    while (!waiting.empty()) {
      std::vector<std::int64_t> ids;
      for (const std::int64_t sum : sums)
        if (ids.size() < 3) ids.push_back(sum % 5);
      mortise_rollout_sequence s{};
      s.struct_size = sizeof s;
      s.finish_reason = MORTISE_FINISH_LENGTH;
      s.request_id = waiting.back().first;
      s.sample_index = waiting.back().second;
      s.weight_version = held_version;
      s.num_ids = std::int64_t(ids.size());
      s.ids = ids.data();
      waiting.pop_back();
      if (sink.sequence(sink.context, &s) != 0) break;
    }
    return waiting.size();
  }
  void abort(std::int64_t, mortise::Call) override { waiting.clear(); }
  void sleep(std::int32_t level, mortise::Call call) override {
    if (level >= 2) held_version = -1;
    call.log(MORTISE_LOG_INFO, "sleeps at level " + std::to_string(level));
  }
  void wake(mortise::Call call) override { call.log(MORTISE_LOG_INFO, "is awake"); }
};

// Another without a copy of the weights: its table has none of the three slots.
struct Forgetful : mortise::RolloutBackend {
  void set_version(std::int64_t, mortise::Call) override {}
  std::uint64_t submit(mortise::Span<const mortise_rollout_request* const>, mortise::Call) override { return 0; }
  std::uint64_t poll(const mortise_rollout_sink&, std::int64_t, mortise::Call) override { return 0; }
  void abort(std::int64_t, mortise::Call) override {}
};

}  // namespace

MORTISE_PACK(MORTISE_ROLLOUT_BACKEND("holder", Holder) MORTISE_ROLLOUT_BACKEND("forgetful", Forgetful)
                 MORTISE_REWARD("params", Params) MORTISE_REWARD("throws", Throws) MORTISE_REWARD("cell", Cell)
                     MORTISE_REWARD("group_mean", GroupMean) MORTISE_TOKEN_LOSS("clip", Clip)
                         MORTISE_TOKEN_LOSS("metered", Metered) MORTISE_TOKEN_LOSS("metered_single", MeteredSingle)
                             MORTISE_SEQUENCE_LOSS("row_ratio", RowRatio) MORTISE_KL_ESTIMATOR("ratio_k3", RatioK3)
                                 MORTISE_TOKEN_LOSS("token_throws", TokenThrows) MORTISE_REWARD("steps", Steps)
                                     MORTISE_REWARD("echo", Echo))
