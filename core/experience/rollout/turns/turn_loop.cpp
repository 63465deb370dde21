// Moves rows between the backend and the environment, and keeps their limits.
#include "experience/rollout/turns/turn_loop.h"

#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "experience/rollout/rollout_runner.h"
#include "experience/rollout/turns/tool_answer.h"
#include "foundation/base/log.h"
#include "foundation/base/rng.h"
#include "foundation/base/text.h"

namespace mortise {
namespace {

// Places of random keys that no sampled token has.
constexpr uint64_t kTurnSample = ~uint64_t{0}, kEpisodeSample = ~uint64_t{0} - 1;

}  // namespace

uint64_t turn_seed(uint64_t seed, int64_t turn) {
  if (turn == 0) return seed;
  return random_u64({seed, RandomPurpose::kSampling, static_cast<uint64_t>(turn), kTurnSample, 0});
}

TurnLoop::TurnLoop(TurnParts& parts, const PromptBatch& prompts, const RolloutPlan& plan, const Tokenizer& tokenizer,
                   std::vector<Sample>& rows)
    : parts_(parts), prompts_(prompts), plan_(plan), tokenizer_(tokenizer), samples_(rows), rows_(rows.size()) {}

TurnLoop::~TurnLoop() {
  const auto closed = parts_.environment->close();
  if (!closed.ok()) log_warn(closed.error().to_string());
}

const Prompt& TurnLoop::prompt_of(size_t row) const {
  return prompts_.prompts[static_cast<size_t>(samples_[row].prompt_index)];
}

int64_t TurnLoop::room(size_t row) const {
  return plan_.sampling.max_new_tokens - static_cast<int64_t>(samples_[row].token_ids.size());
}

void TurnLoop::begin(size_t row) {
  const Prompt& prompt = prompt_of(row);
  // The same for all rows of a prompt, and for the greedy completion of a baseline.
  const auto place = static_cast<uint64_t>(plan_.first_row_id / plan_.num_samples + samples_[row].prompt_index);
  EpisodeStart start;
  start.episode = static_cast<int64_t>(row);
  start.step = prompts_.step;
  start.seed = random_u64(
      {random_u64({plan_.seed, RandomPurpose::kSampling, static_cast<uint64_t>(prompts_.step), kEpisodeSample, 0}),
       RandomPurpose::kSampling, static_cast<uint64_t>(prompts_.step), place, 0});
  start.sample_index = samples_[row].sample_index;
  start.is_validation = plan_.is_validation;
  start.messages = prompt.messages;
  start.columns = dump_json(prompt.columns);
  ++num_begun_;
  parts_.environment->begin(std::move(start));
}

Result<> TurnLoop::advance(int wait_ms) {
  TRY(parts_.environment->advance(wait_ms, [&](EpisodeAnswer given) { answer(std::move(given)); }));
  // An environment that hangs costs its time limit for each row, so the end is not awaited if it is known.
  return too_many_failed_of(static_cast<int64_t>(rows_.size())) ? check_failures() : Result<>();
}

// An answer that cannot be used fails its row alone.
void TurnLoop::answer(EpisodeAnswer given) {
  const auto row = static_cast<size_t>(given.episode);
  if (!given.failure.empty()) return fail(row, given.failure);
  const auto done = rows_[row].began ? continue_row(row, given) : start_row(row, given);
  if (!done.ok()) fail(row, done.error().to_string());
}

Result<Json> TurnLoop::observed(const std::string& text) {
  if (text.empty()) return Json::array();
  Json messages = TRY(parse_json(text, "an observation of the environment"));
  if (!messages.is_array())
    return Error{ErrorKind::kData, "the observation is not a list of messages", "the environment",
                 "let it answer with [{\"role\": ..., \"content\": ...}]"};
  int64_t number = 0;
  for (Json& message : messages) {
    const Json* const role = json_find(message, "role");
    const Json* const content = json_find(message, "content");
    if (role == nullptr || !role->is_string() || content == nullptr || !content->is_string()) {
      return Error{ErrorKind::kData, "a message of the observation lacks the texts \"role\" and \"content\"",
                   "the environment", "correct the environment"};
    }
    if (*role != "tool") continue;
    message["content"] = cut_tool_answer(content->get<std::string>(), parts_.config.max_tool_response_length,
                                         parts_.config.tool_response_truncate_side);
    message["tool_call_id"] = fmt::format("{:09d}", ++number);  // some templates want one of nine characters
  }
  return messages;
}

Result<> TurnLoop::start_row(size_t row, const EpisodeAnswer& answer) {
  Row& state = rows_[row];
  state.began = true;
  const Json messages = TRY(observed(answer.messages));
  const Prompt& prompt = prompt_of(row);
  state.context = prompt.token_ids;
  if (!messages.empty()) {
    state.context = TRY(parts_.renderer.prompt_with(prompt, messages));
    const auto length = static_cast<int64_t>(state.context.size());
    if (length > parts_.max_prompt_length) {
      return Error{ErrorKind::kData,
                   fmt::format("the prompt with the first observation has {} tokens, more than "
                               "data.max_prompt_length = {}",
                               length, parts_.max_prompt_length),
                   "", "raise the limit"};
    }
    samples_[row].turns.prompt_ids = state.context;
    for (const Json& message : messages) state.messages.push_back(message);
  }
  request_turn(row);
  return {};
}

void TurnLoop::request_turn(size_t row) {
  Row& state = rows_[row];
  state.sampling = plan_.sampling;
  state.sampling.max_new_tokens = std::min(room(row), parts_.config.max_turn_length.value_or(room(row)));
  state.sampling.min_new_tokens = std::min(state.sampling.min_new_tokens, state.sampling.max_new_tokens);
  ready_.push_back(row);
}

std::vector<RolloutRequest> TurnLoop::take_requests() {
  std::vector<RolloutRequest> requests;
  for (const size_t row : std::exchange(ready_, {})) {
    RolloutRequest& request = requests.emplace_back();
    request.request_id = static_cast<int64_t>(row);
    request.prompt_ids = rows_[row].context;
    request.num_samples = 1;
    request.first_row_id = plan_.first_row_id + static_cast<int64_t>(row);
    request.seed = turn_seed(plan_.seed, rows_[row].turn);
    request.step = prompts_.step;
    request.sampling = &rows_[row].sampling;
  }
  return requests;
}

std::vector<size_t> TurnLoop::take_finished() { return std::exchange(finished_, {}); }

void TurnLoop::append(size_t row, std::span<const int64_t> ids, std::span<const float> log_prob, bool is_sampled) {
  Sample& sample = samples_[row];
  rows_[row].context.insert(rows_[row].context.end(), ids.begin(), ids.end());
  sample.token_ids.insert(sample.token_ids.end(), ids.begin(), ids.end());
  sample.turns.is_sampled.insert(sample.turns.is_sampled.end(), ids.size(), is_sampled ? 1 : 0);
  if (!sample.turns.rewards.empty()) sample.turns.rewards.resize(sample.token_ids.size());
  if (is_sampled && log_prob.size() != ids.size()) rows_[row].has_log_probs = false;
  if (is_sampled)
    sample.log_prob.insert(sample.log_prob.end(), log_prob.begin(), log_prob.end());
  else
    sample.log_prob.insert(sample.log_prob.end(), ids.size(), 0.0F);
}

std::vector<ToolCall> TurnLoop::calls_of(size_t row, std::span<const int64_t> ids) const {
  if (parts_.tools.is_null() && !prompt_of(row).columns.contains("tools")) return {};
  const Json* const own = json_find(prompt_of(row).columns, "tools");
  const Json& tools = own != nullptr && own->is_array() ? *own : parts_.tools;
  auto calls = find_tool_calls(parts_.renderer.turn_text(ids), parts_.config.format, tools);
  const auto most = static_cast<size_t>(parts_.config.max_parallel_calls.value_or(INT64_MAX));
  if (calls.size() > most) calls.resize(most);
  return calls;
}

void TurnLoop::note_assistant(size_t row, const std::string& text, const std::vector<ToolCall>& calls) {
  Json message = {{"role", "assistant"}, {"content", text}};
  if (!calls.empty()) message["tool_calls"] = tool_calls_json(calls);
  rows_[row].messages.push_back(std::move(message));
}

std::optional<TurnEnd> TurnLoop::limit_after(size_t row, int32_t finish_reason) const {
  const MultiTurnConfig& limits = parts_.config;
  const Row& state = rows_[row];
  if (finish_reason == MORTISE_FINISH_LENGTH) return room(row) <= 0 ? TurnEnd::kResponseLength : TurnEnd::kTurnLength;
  if (limits.max_assistant_turns && state.turn >= *limits.max_assistant_turns) return TurnEnd::kMaxTurns;
  if (limits.max_user_turns && state.num_observations >= *limits.max_user_turns) return TurnEnd::kMaxTurns;
  if (room(row) <= 0) return TurnEnd::kResponseLength;
  return std::nullopt;
}

void TurnLoop::take(const RolloutSequence& sequence) {
  const auto row = static_cast<size_t>(sequence.request_id);
  Row& state = rows_[row];
  Sample& sample = samples_[row];
  append(row, sequence.ids, sequence.log_prob, /*is_sampled=*/true);
  sample.weight_version = sequence.weight_version;
  sample.finish_reason = static_cast<FinishReason>(sequence.finish_reason);
  sample.turns.num_assistant = ++state.turn;
  if (sample.finish_reason == FinishReason::kAbort) return finish(row, TurnEnd::kStop);

  const std::vector<ToolCall> calls = calls_of(row, sequence.ids);
  state.has_calls = !calls.empty();
  state.last = limit_after(row, sequence.finish_reason);
  EpisodeAction action;
  action.episode = static_cast<int64_t>(row);
  action.step = prompts_.step;
  action.turn = state.turn - 1;
  action.finish_reason = sequence.finish_reason;
  action.is_last = state.last.has_value();
  action.text = tokenizer_.decode(sequence.ids, /*skip_special_tokens=*/true);
  action.calls = dump_json(tool_calls_json(calls));
  action.ids.assign(sequence.ids.begin(), sequence.ids.end());
  note_assistant(row, action.text, calls);
  parts_.environment->act(std::move(action));
}

Result<> TurnLoop::continue_row(size_t row, const EpisodeAnswer& answer) {
  Row& state = rows_[row];
  Sample& sample = samples_[row];
  SampleTurns& turns = sample.turns;
  turns.num_tool_calls += answer.num_calls;
  turns.num_failed_calls += answer.num_failed_calls;
  if (!std::isnan(answer.reward)) {
    turns.rewards.resize(sample.token_ids.size());
    turns.rewards.back() += answer.reward;
  }
  const Json messages = TRY(observed(answer.messages));
  if (answer.done || state.last || messages.empty()) {
    finish(row, end_after(row, answer.done));
    return {};
  }
  const std::span<const int64_t> sampled =
      std::span(sample.token_ids).subspan(sample.token_ids.size() - last_turn_length(row));
  const std::vector<int64_t> suffix = TRY(parts_.renderer.suffix(prompt_of(row), sampled, messages));
  if (static_cast<int64_t>(suffix.size()) >= room(row)) {  // nothing could follow it
    sample.finish_reason = FinishReason::kLength;
    finish(row, TurnEnd::kResponseLength);
    return {};
  }
  append(row, suffix, {}, /*is_sampled=*/false);
  for (const Json& message : messages) state.messages.push_back(message);
  ++state.num_observations;
  request_turn(row);
  return {};
}

// Why a row ends whose last turn has its answer.
TurnEnd TurnLoop::end_after(size_t row, bool done) const {
  const Row& state = rows_[row];
  if (state.last && *state.last != TurnEnd::kMaxTurns) return *state.last;
  if (!parts_.tools.is_null() && !state.has_calls) return TurnEnd::kStop;
  // Tools that were not called, as no turn could follow, say done too.
  const bool is_told = done && (parts_.tools.is_null() || !state.last);
  return is_told || !state.last ? TurnEnd::kDone : TurnEnd::kMaxTurns;
}

size_t TurnLoop::last_turn_length(size_t row) const {
  const std::vector<uint8_t>& sampled = samples_[row].turns.is_sampled;
  return static_cast<size_t>(std::find(sampled.rbegin(), sampled.rend(), uint8_t{0}) - sampled.rbegin());
}

void TurnLoop::finish(size_t row, TurnEnd end) {
  Sample& sample = samples_[row];
  sample.turns.end = end;
  sample.turns.messages = dump_json(rows_[row].messages);
  sample.text = tokenizer_.decode(sample.token_ids, /*skip_special_tokens=*/true);
  if (!rows_[row].has_log_probs) sample.log_prob.clear();
  rows_[row].context = {};
  finished_.push_back(row);
}

void TurnLoop::fail(size_t row, const std::string& why) {
  Sample& sample = samples_[row];
  if (num_failed_++ == 0) first_failure_ = fmt::format("row {}: {}", row, why);
  sample.turns.num_assistant = std::max<int64_t>(1, sample.turns.num_assistant);
  sample.turns.failure = why;
  sample.finish_reason = FinishReason::kAbort;
  finish(row, TurnEnd::kFailed);
}

bool TurnLoop::too_many_failed_of(int64_t num_rows) const {
  return static_cast<double>(num_failed_) > parts_.max_failed_fraction * static_cast<double>(num_rows);
}

Result<> TurnLoop::check_failures() const {
  if (num_failed_ == 0) return {};
  const std::string what =
      fmt::format("the environment failed on {} of {} rows; first: {}", num_failed_, num_begun_, first_failure_);
  const std::string where = fmt::format("{}, step {}", parts_.environment->label(), prompts_.step);
  if (too_many_failed_of(num_begun_)) {
    return Error{
        ErrorKind::kReward, what, where,
        "correct the environment, or raise plugins.max_failed_fraction = " + format_f64(parts_.max_failed_fraction)};
  }
  log_warn(fmt::format("{}: {}", where, what));
  return {};
}

}  // namespace mortise
