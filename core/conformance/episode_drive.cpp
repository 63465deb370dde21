// Fills guarded structs with episodes, collects observations, and plays whole episodes.
#include "conformance/episode_drive.h"

#include <fmt/core.h>

#include <array>
#include <cmath>
#include <new>

#include "conformance/guarded_args.h"
#include "foundation/base/text.h"
#include "mortise/kinds/environment.h"
#include "plugin/host/abi_struct.h"

namespace mortise::check {
namespace {

using EpisodeSlots = mortise_environment_vtable;
constexpr int64_t kMostTurns = 4;

EpisodeSlots slots_of_episodes(const Instance& instance) {
  return read_abi_struct(&instance.subject().vtable<EpisodeSlots>());
}

mortise_text text_of(GuardedArguments& args, const char* name, std::string_view value) {
  return {args.array(name, std::span<const char>(value)), value.size()};
}

EpisodeAnswer copy_of(const mortise_observation& in) {
  EpisodeAnswer out;
  out.episode = in.episode;
  out.done = in.done != 0;
  out.reward = in.reward;
  if (in.messages.data != nullptr) out.messages.assign(in.messages.data, in.messages.size);
  out.num_calls = in.num_calls;
  out.num_failed_calls = in.num_failed_calls;
  return out;
}

void take_observation_of(void* context, const mortise_observation* given) noexcept {
  auto& call = *static_cast<EpisodeCall*>(context);
  const auto in = read_abi_struct(given);
  for (size_t i = 0; i < call.answers.size(); ++i) {
    if (call.answers[i].episode != in.episode) continue;
    ++call.num_given[i];
    try {
      call.answers[i] = copy_of(in);
    } catch (const std::bad_alloc&) {
      call.fault = "gave an observation for which there is no memory";
    }
    return;
  }
  call.fault = fmt::format("gave an observation for episode {}, which is not of this call", in.episode);
}

void take_description_text(void* context, mortise_text json) noexcept {
  auto& text = *static_cast<std::string*>(context);
  if (json.data != nullptr) text.assign(json.data, json.size);
}

// slot(call, sink) for these episodes.
template <class Slot>
EpisodeCall call_with_sink(const Instance& instance, std::vector<int64_t> episodes, GuardedArguments& args, Slot slot) {
  EpisodeCall out;
  out.num_given.assign(episodes.size(), 0);
  for (const int64_t episode : episodes) out.answers.emplace_back().episode = episode;
  auto* sink = args.make<mortise_observation_sink>("the sink's struct");
  sink->context = &out;
  sink->observation = take_observation_of;
  args.protect_all();
  out.call = instance.subject().run(static_cast<int64_t>(episodes.size()),
                                    [&](mortise_call* call) { return slot(call, sink); });
  for (const FailedRow& failed : out.call.failed_rows)
    out.answers[static_cast<size_t>(failed.row)].failure = failed.text.empty() ? "no text" : failed.text;
  return out;
}

Result<> demand_answer(const EpisodeAnswer& answer, int64_t num_given, const std::string& who) {
  if (!answer.failure.empty()) return {};
  if (num_given == 0) return broken(fmt::format("{} has no observation; give one, or call fail_row", who));
  if (num_given > 1) return broken(fmt::format("{} has {} observations; give one", who, num_given));
  if (std::isinf(answer.reward)) return broken(fmt::format("{} has an infinite reward", who));
  if (answer.num_failed_calls < 0 || answer.num_failed_calls > answer.num_calls)
    return broken(fmt::format("{} has {} failed tool calls of {}", who, answer.num_failed_calls, answer.num_calls));
  return {};
}

bool is_same_answer(const EpisodeAnswer& a, const EpisodeAnswer& b) {
  if (a.failure.empty() != b.failure.empty()) return false;
  if (!a.failure.empty()) return true;
  const bool same_reward_here = a.reward == b.reward || (std::isnan(a.reward) && std::isnan(b.reward));
  return same_reward_here && a.done == b.done && a.messages == b.messages && a.num_calls == b.num_calls &&
         a.num_failed_calls == b.num_failed_calls;
}

std::string text_of_answer(const EpisodeAnswer& answer) {
  if (!answer.failure.empty()) return "a failure";
  return fmt::format("reward {}{}, messages {}", format_f64(answer.reward), answer.done ? ", done" : "",
                     quote(answer.messages.substr(0, 100)));
}

}  // namespace

EpisodeCall call_reset(const Instance& instance, std::span<const EpisodeStart> starts, size_t tail_bytes) {
  GuardedArguments args(tail_bytes);
  std::vector<const mortise_episode_start*> pointers;
  std::vector<int64_t> episodes;
  for (const EpisodeStart& start : starts) {
    auto* out = args.make<mortise_episode_start>("the start's struct");
    out->is_validation = start.is_validation ? 1 : 0;
    out->episode = start.episode;
    out->step = start.step;
    out->seed = start.seed;
    out->sample_index = start.sample_index;
    out->messages = text_of(args, "messages", start.messages);
    out->columns = text_of(args, "columns", start.columns);
    pointers.push_back(out);
    episodes.push_back(start.episode);
  }
  const auto* array = args.array("episodes", std::span<const mortise_episode_start* const>(pointers));
  const auto slot = catchable(slots_of_episodes(instance).reset);
  if (slot == nullptr) {  // every episode then begins without a word
    EpisodeCall out;
    out.num_given.assign(episodes.size(), 1);
    for (const int64_t episode : episodes) out.answers.emplace_back().episode = episode;
    return out;
  }
  return call_with_sink(instance, std::move(episodes), args,
                        [&](mortise_call* call, const mortise_observation_sink* sink) {
                          return slot(instance.self(), call, array, starts.size(), sink);
                        });
}

EpisodeCall call_step(const Instance& instance, std::span<const EpisodeAction> actions, size_t tail_bytes) {
  GuardedArguments args(tail_bytes);
  std::vector<const mortise_episode_action*> pointers;
  std::vector<int64_t> episodes;
  for (const EpisodeAction& action : actions) {
    auto* out = args.make<mortise_episode_action>("the turn's struct");
    out->finish_reason = action.finish_reason;
    out->episode = action.episode;
    out->turn = action.turn;
    out->is_last = action.is_last ? 1 : 0;
    out->text = text_of(args, "text", action.text);
    out->calls = text_of(args, "calls", action.calls);
    out->num_ids = static_cast<int64_t>(action.ids.size());
    out->ids = args.array("ids", action.ids);
    pointers.push_back(out);
    episodes.push_back(action.episode);
  }
  const auto* array = args.array("actions", std::span<const mortise_episode_action* const>(pointers));
  const auto slot = catchable(slots_of_episodes(instance).step);
  return call_with_sink(instance, std::move(episodes), args,
                        [&](mortise_call* call, const mortise_observation_sink* sink) {
                          return slot(instance.self(), call, array, actions.size(), sink);
                        });
}

SlotCall call_close(const Instance& instance, std::span<const int64_t> episodes) {
  const auto slot = catchable(slots_of_episodes(instance).close);
  if (slot == nullptr) return {};
  GuardedArguments args(0);
  const int64_t* array = args.array("episodes", episodes);
  args.protect_all();
  return instance.subject().run(
      0, [&](mortise_call* call) { return slot(instance.self(), call, array, episodes.size()); });
}

Result<std::string> call_describe(const Instance& instance, size_t tail_bytes) {
  const auto slot = catchable(slots_of_episodes(instance).describe);
  if (slot == nullptr) return std::string();
  GuardedArguments args(tail_bytes);
  std::string text;
  auto* sink = args.make<mortise_observation_sink>("the sink's struct");
  sink->context = &text;
  sink->description = take_description_text;
  args.protect_all();
  TRY(demand_ok(instance.subject().run(0, [&](mortise_call* call) { return slot(instance.self(), call, sink); }),
                "describe"));
  return text;
}

Result<> demand_answers(const EpisodeCall& call, std::string_view slot) {
  TRY(demand_ok(call.call, slot));
  if (!call.fault.empty()) return broken(fmt::format("{} {}", slot, call.fault));
  for (size_t i = 0; i < call.answers.size(); ++i)
    TRY(demand_answer(call.answers[i], call.num_given[i],
                      fmt::format("{}: episode {}", slot, call.answers[i].episode)));
  return {};
}

std::vector<EpisodeStart> usual_starts(uint64_t seed) {
  std::vector<EpisodeStart> out;
  for (int64_t i = 0; i < 6; ++i) {
    EpisodeStart& start = out.emplace_back();
    start.episode = 40 - 3 * i;
    start.step = 3;
    start.seed = 1000 * seed + static_cast<uint64_t>(i / 2);
    start.sample_index = i % 2;
    start.messages = R"([{"role": "user", "content": "Begin with 42."}])";
    start.columns = R"({"prompt": [{"role": "user", "content": "Begin with 42."}], "answer": "42", "level": 3})";
  }
  return out;
}

EpisodeAction usual_turn(const EpisodeStart& start, int64_t turn) {
  constexpr std::array<const char*, 4> kTexts = {"I say 4.", "Then it is 7, or 42", "the answer is \\boxed{3}", "0"};
  EpisodeAction out;
  out.episode = start.episode;
  out.step = start.step;
  out.turn = turn;
  out.finish_reason = MORTISE_FINISH_STOP;
  out.is_last = turn + 1 == kMostTurns;
  out.text = kTexts[(start.seed + static_cast<uint64_t>(start.sample_index + turn)) % kTexts.size()];
  out.calls = "[]";
  out.ids = {5, 6, static_cast<int64_t>(out.text.size())};
  return out;
}

Result<std::vector<Played>> play(const Instance& instance, std::span<const EpisodeStart> starts, size_t tail_bytes) {
  std::vector<Played> out(starts.size());
  const EpisodeCall begun = call_reset(instance, starts, tail_bytes);
  TRY(demand_answers(begun, "reset"));
  std::vector<int64_t> episodes;
  for (size_t i = 0; i < starts.size(); ++i) {
    out[i].push_back(begun.answers[i]);
    episodes.push_back(starts[i].episode);
  }
  for (int64_t turn = 0; turn < kMostTurns; ++turn) {
    std::vector<EpisodeAction> actions;
    std::vector<size_t> places;
    for (size_t i = 0; i < starts.size(); ++i) {
      if (out[i].back().done || !out[i].back().failure.empty()) continue;
      actions.push_back(usual_turn(starts[i], turn));
      places.push_back(i);
    }
    if (actions.empty()) break;
    const EpisodeCall stepped = call_step(instance, actions, tail_bytes);
    TRY(demand_answers(stepped, "step"));
    for (size_t k = 0; k < places.size(); ++k) out[places[k]].push_back(stepped.answers[k]);
  }
  TRY(demand_ok(call_close(instance, episodes), "close"));
  return out;
}

Result<> demand_same_episode(const Played& one, const Played& other, const std::string& what) {
  for (size_t i = 0; i < std::max(one.size(), other.size()); ++i) {
    const std::string turn = i == 0 ? std::string("reset") : fmt::format("turn {}", i - 1);
    if (i >= one.size() || i >= other.size())
      return broken(fmt::format("{}: the episode ends before {} in one case only", what, turn));
    if (!is_same_answer(one[i], other[i]))
      return broken(fmt::format("{}: {} of episode {} gives {} and then {}", what, turn, one[i].episode,
                                text_of_answer(one[i]), text_of_answer(other[i])));
  }
  return {};
}

}  // namespace mortise::check
