// Sends requests to the backend, checks the sequences that come back, and puts them in order.
#include "experience/rollout/rollout_runner.h"

#include <fmt/core.h>
#include <algorithm>

#include "foundation/base/log.h"
#include "foundation/base/signal.h"

namespace mortise {

namespace {

constexpr int64_t kPollTimeoutMs = 1000;  // how long one poll may work before progress is shown
constexpr int64_t kTurnTimeoutMs = 20;    // and before on_turn() is called, where there is one

std::vector<RolloutRequest> make_requests(const PromptBatch& prompts, const RolloutPlan& plan) {
  std::vector<RolloutRequest> requests;
  for (size_t p = 0; p < prompts.prompts.size(); ++p) {
    if (plan.block && !plan.block->contains(static_cast<int64_t>(p))) continue;
    RolloutRequest& request = requests.emplace_back();
    request.request_id = static_cast<int64_t>(p);
    request.prompt_ids = prompts.prompts[p].token_ids;
    request.num_samples = plan.num_samples;
    request.first_row_id = plan.first_row_id + static_cast<int64_t>(p) * plan.num_samples;
    request.seed = plan.seed;
    request.step = prompts.step;
    request.sampling = &plan.sampling;
  }
  return requests;
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

Result<SampleBatch> RolloutRunner::collect(const PromptBatch& prompts, const RolloutPlan& plan,
                                           const Tokenizer& tokenizer, MetricSet* metrics,
                                           const std::function<void(int64_t, int64_t)>& progress,
                                           const std::function<Result<>(const SampleBatch&, int64_t)>& on_prompt,
                                           const std::function<Result<>()>& on_turn) {
  TRY(wake());
  const std::vector<RolloutRequest> requests = make_requests(prompts, plan);
  const auto total = static_cast<int64_t>(requests.size()) * plan.num_samples;
  SampleBatch batch;
  batch.num_samples_per_prompt = plan.num_samples;
  batch.rows.resize(prompts.prompts.size() * static_cast<size_t>(plan.num_samples));
  std::vector<uint8_t> arrived(batch.rows.size(), 0);
  int64_t num_arrived = 0;
  std::vector<int64_t> missing(prompts.prompts.size(), plan.num_samples);  // by prompt
  Result<> told;
  if (requests.empty()) return batch;

  const RolloutSink sink = [&](const RolloutSequence& sequence) {
    if (told.ok()) told = check_sequence_ids(sequence, plan.vocab_size, backend_.instance().label());
    if (!told.ok()) return true;
    const auto row = static_cast<size_t>(sequence.request_id * plan.num_samples + sequence.sample_index);
    Sample& sample = batch.rows[row];
    sample.prompt_index = sequence.request_id;
    sample.sample_index = sequence.sample_index;
    sample.token_ids.assign(sequence.ids.begin(), sequence.ids.end());
    sample.log_prob.assign(sequence.log_prob.begin(), sequence.log_prob.end());
    sample.finish_reason = static_cast<FinishReason>(sequence.finish_reason);
    sample.weight_version = sequence.weight_version;
    sample.text = tokenizer.decode(sample.token_ids, /*skip_special_tokens=*/true);
    if (arrived[row] != 0) return true;
    arrived[row] = 1;
    ++num_arrived;
    if (--missing[static_cast<size_t>(sequence.request_id)] > 0 || !on_prompt) return true;
    if (told.ok()) told = on_prompt(batch, sequence.request_id);
    return true;
  };

  if (plan.stop_on_signal) take_stop_requests();
  size_t submitted = 0;
  uint64_t outstanding = 0;
  do {
    if (submitted < requests.size()) {
      submitted += TRY(backend_.submit(std::span(requests).subspan(submitted)));
    }
    const int64_t before = num_arrived;
    outstanding = TRY(backend_.poll(on_turn ? kTurnTimeoutMs : kPollTimeoutMs, sink, metrics));
    TRY(told);
    if (on_turn) TRY(on_turn());
    if (plan.stop_on_signal && stop_requested()) {
      if (const auto given_up = backend_.abort(-1); !given_up.ok()) log_warn(given_up.error().to_string());
      return Error{ErrorKind::kSignal, "stopped by a signal before all completions were sampled", "", ""};
    }
    if (progress) progress(num_arrived, total);
    if (outstanding == 0 && num_arrived == before && submitted < requests.size()) {
      return Error{ErrorKind::kPlugin, "the backend accepts no more requests although none is outstanding",
                   backend_.instance().label(), "report this to the backend's author"};
    }
  } while (submitted < requests.size() || outstanding > 0);
  if (num_arrived != total) {
    return Error{ErrorKind::kPlugin, fmt::format("the backend returned {} of {} sequences", num_arrived, total),
                 backend_.instance().label(), "report this to the backend's author"};
  }
  return batch;
}

}  // namespace mortise
