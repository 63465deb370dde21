// Sends requests to the backend, checks the sequences that come back, and puts them in order.
#include "experience/rollout/rollout_runner.h"

#include <fmt/core.h>
#include <algorithm>

#include "experience/rollout/row_segments.h"
#include "foundation/base/at_place.h"
#include "foundation/base/log.h"
#include "foundation/base/signal.h"

namespace mortise {

namespace {

constexpr int64_t kPollTimeoutMs = 1000;  // how long one poll may work before progress is shown
constexpr int64_t kTurnTimeoutMs = 20;    // and before on_turn() is called, where there is one

RolloutRequest make_request(const PromptBatch& prompts, const RolloutPlan& plan, int64_t prompt) {
  RolloutRequest request;
  request.request_id = prompt;
  request.prompt_ids = prompts.prompts[static_cast<size_t>(prompt)].token_ids;
  request.num_samples = plan.num_samples;
  request.first_row_id = plan.first_row_id + prompt * plan.num_samples;
  request.seed = plan.seed;
  request.step = prompts.step;
  request.sampling = &plan.sampling;
  return request;
}

// Checked here, because a later error could not name the backend that gave unknown ids.
Result<> check_sequence_ids(const RolloutSequence& sequence, int64_t vocab_size, const std::string& backend) {
  if (vocab_size == 0) return {};
  for (const int64_t id : sequence.ids) {
    if (id < vocab_size) continue;
    return Error{
        ErrorKind::kPlugin,
        fmt::format("gave the token id {} in sample {} of the step's prompt {}, but the model's vocabulary has {}", id,
                    sequence.sample_index, sequence.request_id, vocab_size),
        backend, "use a backend, or rows to replay, with the model's own tokenizer"};
  }
  return {};
}

// A server that ignores the pattern answers with any text, and the run would learn from it.
Result<> check_pattern(const PatternCheck* pattern, const RolloutSequence& sequence, const Sampling& sampling,
                       const Tokenizer& tokenizer, const std::string& backend) {
  const auto reason = static_cast<FinishReason>(sequence.finish_reason);
  if (pattern == nullptr || reason == FinishReason::kAbort) return {};
  const bool may_be_cut = reason == FinishReason::kLength || !sampling.stop_strings.empty();
  const auto extent = may_be_cut ? PatternCheck::Extent::kBeginning : PatternCheck::Extent::kWhole;
  if (TRY(at_place(backend, pattern->follows(sequence.ids, sampling.stop_ids, extent, tokenizer)))) return {};
  constexpr size_t kShownTokens = 60;
  const auto shown = sequence.ids.first(std::min(sequence.ids.size(), kShownTokens));
  return Error{ErrorKind::kPlugin,
               fmt::format("gave a completion that does not match rollout.structured_outputs_regex, so it, or the "
                           "server that it asks, ignores the pattern. It is sample {} of the step's prompt {}, and "
                           "begins: {}",
                           sequence.sample_index, sequence.request_id, tokenizer.decode(shown)),
               backend,
               "use a server whose version guides by regular expressions (docs/guided.md), or remove "
               "rollout.structured_outputs_regex"};
}

}  // namespace

Result<RolloutRunner> RolloutRunner::create(PluginRegistry& registry, const std::string& backend, const Json& params,
                                            const RunKey& key) {
  return RolloutRunner(TRY(RolloutBackend::create(registry, backend, params, key)));
}

Result<> RolloutRunner::sleep(int level) {
  if (is_asleep_) return {};
  TRY(backend_.sleep(level));
  is_asleep_ = true;
  return {};
}

Result<> RolloutRunner::wake() {
  if (!is_asleep_) return {};
  TRY(backend_.wake());
  is_asleep_ = false;
  return {};
}

Result<size_t> RolloutRunner::exchange(std::vector<RolloutRequest>& requests, uint64_t& outstanding, int64_t timeout_ms,
                                       const RolloutSink& sink, MetricSet* metrics) {
  size_t accepted = 0;
  if (!requests.empty()) {
    accepted = TRY(backend_.submit(requests));
    requests.erase(requests.begin(), requests.begin() + static_cast<std::ptrdiff_t>(accepted));
  }
  if (outstanding > 0 || accepted > 0 || !requests.empty()) outstanding = TRY(backend_.poll(timeout_ms, sink, metrics));
  return accepted;
}

Result<const PatternCheck*> RolloutRunner::pattern_check(const std::string& regex) {
  if (regex.empty()) return static_cast<const PatternCheck*>(nullptr);
  if (!pattern_check_ || checked_regex_ != regex) {
    pattern_check_ = TRY(PatternCheck::create(regex));
    checked_regex_ = regex;
  }
  return static_cast<const PatternCheck*>(&*pattern_check_);
}

Error RolloutRunner::accepts_nothing() const {
  return {ErrorKind::kPlugin, "the backend accepts no more requests although none is outstanding",
          backend_.instance().label(), "report this to the backend's author"};
}

Error RolloutRunner::lost_rows(int64_t num_arrived, int64_t num_begun) const {
  return {ErrorKind::kPlugin, fmt::format("the backend returned {} of {} sequences", num_arrived, num_begun),
          backend_.instance().label(), "report this to the backend's author"};
}

namespace {

// One collection: what is there of each row, and what is still to come.
class Collection {
 public:
  Collection(const PromptBatch& prompts, const RolloutPlan& plan, const Tokenizer& tokenizer, std::string backend,
             const PatternCheck* pattern, const std::function<Result<>(const SampleBatch&, int64_t)>& on_prompt)
      : prompts_(prompts),
        plan_(plan),
        tokenizer_(tokenizer),
        backend_(std::move(backend)),
        pattern_(pattern),
        on_prompt_(on_prompt) {
    batch.num_samples_per_prompt = plan.num_samples;
    batch.is_filtered = plan.is_filtered;
    batch.rows.resize(prompts.prompts.size() * static_cast<size_t>(plan.num_samples));
    arrived_.resize(batch.rows.size(), 0);
    missing_.resize(prompts.prompts.size(), plan.num_samples);
  }

  // The rows of this process will have turns.
  void use_turns(TurnParts& parts) {
    turns_.emplace(parts, prompts_, plan_, tokenizer_, batch.rows);
    for (size_t row = 0; row < batch.rows.size(); ++row) {
      batch.rows[row].prompt_index = static_cast<int64_t>(row) / plan_.num_samples;
      batch.rows[row].sample_index = static_cast<int64_t>(row) % plan_.num_samples;
    }
  }
  // Takes prompts as long as there are more and their rows may be out.
  Result<> begin_prompts(std::vector<RolloutRequest>& requests) {
    while (has_more) {
      const bool is_full =
          plan_.max_rows > 0 && num_begun > num_arrived && num_begun - num_arrived + plan_.num_samples > plan_.max_rows;
      if (is_full) return {};
      const std::optional<int64_t> prompt = TRY(next_prompt());
      has_more = prompt.has_value();
      if (!has_more) return {};
      num_begun += plan_.num_samples;
      if (!turns_) requests.push_back(make_request(prompts_, plan_, *prompt));
      for (int64_t i = 0; turns_ && i < plan_.num_samples; ++i)
        turns_->begin(static_cast<size_t>(*prompt * plan_.num_samples + i));
    }
    return {};
  }
  [[nodiscard]] bool has_turns() const { return turns_.has_value(); }
  [[nodiscard]] bool waits_for_environment() const { return turns_ && turns_->waits_for_environment(); }
  [[nodiscard]] Result<> check_failures() const { return turns_ ? turns_->check_failures() : Result<>(); }

  void take(RolloutSequence sequence) {
    if (told.ok()) told = check_sequence_ids(sequence, plan_.vocab_size, backend_);
    if (told.ok()) told = check_pattern(pattern_, sequence, plan_.sampling, tokenizer_, backend_);
    if (!told.ok()) return;
    if (plan_.is_filtered) sequence.log_prob = sequence.filtered_log_prob;
    if (turns_) return turns_->take(sequence);
    const auto row = static_cast<size_t>(sequence.request_id * plan_.num_samples + sequence.sample_index);
    Sample& sample = batch.rows[row];
    sample.prompt_index = sequence.request_id;
    sample.sample_index = sequence.sample_index;
    sample.token_ids.assign(sequence.ids.begin(), sequence.ids.end());
    sample.log_prob.assign(sequence.log_prob.begin(), sequence.log_prob.end());
    if (!plan_.is_validation) sample.experts.assign(sequence.experts.begin(), sequence.experts.end());
    sample.finish_reason = static_cast<FinishReason>(sequence.finish_reason);
    sample.weight_version = sequence.weight_version;
    sample.text = tokenizer_.decode(sample.token_ids, /*skip_special_tokens=*/true);
    note_arrival(row);
  }

  // Answers of the environment, for which it waits up to `wait_ms`; the requests that follow from them go to `requests`.
  Result<> advance_turns(int wait_ms, std::vector<RolloutRequest>& requests) {
    TRY(turns_->advance(wait_ms));
    for (const size_t row : turns_->take_finished()) note_arrival(row);
    for (RolloutRequest& request : turns_->take_requests()) requests.push_back(request);
    return {};
  }

  SampleBatch batch;
  bool has_more = true;                    // prompts to begin
  int64_t num_begun = 0, num_arrived = 0;  // rows
  Result<> told;                           // the first error of a sink

 private:
  Result<std::optional<int64_t>> next_prompt() {
    if (plan_.next_prompt) return plan_.next_prompt();
    if (next_ == static_cast<int64_t>(prompts_.prompts.size())) return std::optional<int64_t>();
    return std::optional<int64_t>(next_++);
  }
  void note_arrival(size_t row) {
    if (arrived_[row] != 0) return;
    arrived_[row] = 1;
    ++num_arrived;
    const int64_t prompt = batch.rows[row].prompt_index;
    if (--missing_[static_cast<size_t>(prompt)] > 0 || !on_prompt_) return;
    if (told.ok()) told = on_prompt_(batch, prompt);
  }

  const PromptBatch& prompts_;
  const RolloutPlan& plan_;
  const Tokenizer& tokenizer_;
  std::string backend_;
  const PatternCheck* pattern_;  // null: none
  const std::function<Result<>(const SampleBatch&, int64_t)>& on_prompt_;
  std::optional<TurnLoop> turns_;
  std::vector<uint8_t> arrived_;
  std::vector<int64_t> missing_;  // by prompt
  int64_t next_ = 0;
};

}  // namespace

Result<SampleBatch> RolloutRunner::collect(const PromptBatch& prompts, const RolloutPlan& plan,
                                           const Tokenizer& tokenizer, MetricSet* metrics,
                                           const std::function<void(int64_t, int64_t)>& progress,
                                           const std::function<Result<>(const SampleBatch&, int64_t)>& on_prompt,
                                           const std::function<Result<>(const SampleBatch&)>& on_turn) {
  TRY(wake());
  const PatternCheck* const pattern = TRY(pattern_check(plan.sampling.regex));
  Collection all(prompts, plan, tokenizer, backend_.instance().label(), pattern, on_prompt);
  if (turns_) all.use_turns(*turns_);
  std::vector<RolloutRequest> requests;  // that the backend has not accepted
  TRY(all.begin_prompts(requests));
  if (all.num_begun == 0) return std::move(all.batch);
  const RolloutSink sink = [&](const RolloutSequence& sequence) {
    all.take(sequence);
    return true;
  };

  if (plan.stop_on_signal) take_stop_requests();
  uint64_t outstanding = 0;
  do {
    TRY(all.begin_prompts(requests));
    if (all.has_turns()) {
      const bool is_idle = outstanding == 0 && requests.empty();
      TRY(all.advance_turns(is_idle ? static_cast<int>(kTurnTimeoutMs) : 0, requests));
      TRY(all.told);
    }
    const int64_t before = all.num_arrived;
    const bool polls_often = on_turn || all.has_turns();
    const size_t accepted =
        TRY(exchange(requests, outstanding, polls_often ? kTurnTimeoutMs : kPollTimeoutMs, sink, metrics));
    TRY(all.told);
    if (on_turn) TRY(on_turn(all.batch));
    if (plan.stop_on_signal && stop_requested()) {
      if (const auto given_up = backend_.abort(-1); !given_up.ok()) log_warn(given_up.error().to_string());
      return Error{ErrorKind::kSignal, "stopped by a signal before all completions were sampled", "", ""};
    }
    if (progress) progress(all.num_arrived, all.num_begun);
    if (outstanding == 0 && all.num_arrived == before && accepted == 0 && !requests.empty()) return accepts_nothing();
  } while (all.has_more || !requests.empty() || outstanding > 0 || all.waits_for_environment() ||
           (all.has_turns() && all.num_arrived < all.num_begun));
  if (all.num_arrived != all.num_begun) return lost_rows(all.num_arrived, all.num_begun);
  TRY(all.check_failures());
  return std::move(all.batch);
}

Result<> RolloutRunner::collect_segments(std::span<const OpenRows> batches, const RolloutPlan& plan,
                                         const Tokenizer& tokenizer, MetricSet* metrics,
                                         const std::function<void(int64_t, int64_t)>& progress,
                                         const std::function<Result<>()>& on_turn) {
  TRY(wake());
  RowSegments all(batches, plan, tokenizer);
  std::vector<RolloutRequest> requests;
  size_t next = 0;
  bool has_more = true;
  // Takes prompts as long as there are more and their rows may be out.
  const auto begin_prompts = [&]() -> Result<> {
    while (has_more && (plan.max_rows == 0 || all.num_begun() - all.num_arrived() < plan.max_rows)) {
      std::optional<int64_t> prompt;
      if (plan.next_prompt)
        prompt = TRY(plan.next_prompt());
      else if (next < all.open().size())
        prompt = static_cast<int64_t>(next++);
      has_more = prompt.has_value();
      if (prompt) all.begin(static_cast<size_t>(*prompt), requests);
    }
    return {};
  };
  Result<> told;
  const RolloutSink sink = [&](const RolloutSequence& sequence) {
    if (told.ok()) told = check_sequence_ids(sequence, plan.vocab_size, backend_.instance().label());
    if (told.ok()) all.take(sequence);
    return true;
  };
  uint64_t outstanding = 0;
  TRY(begin_prompts());
  while (has_more || !requests.empty() || outstanding > 0) {
    const int64_t before = all.num_arrived();
    const int64_t timeout_ms = plan.max_rows > 0 ? kTurnTimeoutMs : kPollTimeoutMs;
    const size_t accepted = TRY(exchange(requests, outstanding, timeout_ms, sink, metrics));
    TRY(told);
    if (progress) progress(all.num_arrived(), all.num_begun());
    if (on_turn) TRY(on_turn());
    if (outstanding == 0 && all.num_arrived() == before && accepted == 0 && !requests.empty()) return accepts_nothing();
    TRY(begin_prompts());
  }
  if (all.num_arrived() != all.num_begun()) return lost_rows(all.num_arrived(), all.num_begun());
  return {};
}

}  // namespace mortise
