// Environment cases: episodes answer, replay and fail one by one, whatever comes next to them.
#include <fmt/core.h>

#include <cmath>

#include "conformance/episode_drive.h"
#include "foundation/base/text.h"
#include "mortise/kinds/environment.h"
#include "plugin/host/abi_struct.h"

namespace mortise::check {
namespace {

const mortise_environment_vtable& environment_slots(const Subject& subject) {
  return subject.vtable<mortise_environment_vtable>();
}

EpisodeCall one_turn(const Instance& instance, const EpisodeStart& start) {
  const EpisodeAction action = usual_turn(start, 0);
  return call_step(instance, {&action, 1});
}

Result<> episodes(Subject& subject) {
  const Instance instance = TRY(subject.create(make_host()));
  const auto starts = usual_starts();
  const auto played = TRY(play(instance, starts));
  for (const Played& one : played) {
    if (one.size() > 1) return {};
  }
  return broken("no episode of the check takes a turn: all are done or fail after reset");
}

// Why the messages of an observation cannot be rendered; "" if they can.
std::string messages_fault(const std::string& messages) {
  const auto list = parse_json(messages, "messages");
  if (!list.ok() || !list->is_array()) return "are not a JSON list: " + quote(messages.substr(0, 100));
  for (const Json& message : *list) {
    for (const char* key : {"role", "content"}) {
      const Json* const value = json_find(message, key);
      if (value == nullptr || !value->is_string())
        return fmt::format("have no text {}: {}", quote(key), quote(messages.substr(0, 100)));
    }
  }
  return "";
}

Result<> messages(Subject& subject) {
  const Instance instance = TRY(subject.create(make_host()));
  bool any = false;
  for (const Played& episode : TRY(play(instance, usual_starts()))) {
    for (const EpisodeAnswer& answer : episode) {
      if (answer.messages.empty()) continue;
      any = true;
      if (const std::string fault = messages_fault(answer.messages); !fault.empty())
        return broken(fmt::format("episode {} has messages that {}", answer.episode, fault));
    }
  }
  if (any) return {};
  return not_applicable("no turn of the check gets messages");
}

Result<> reset_reward(Subject& subject) {
  const Instance instance = TRY(subject.create(make_host()));
  for (const Played& episode : TRY(play(instance, usual_starts()))) {
    if (std::isnan(episode.front().reward)) continue;
    return broken(fmt::format("reset gives episode {} the reward {}; give NaN, because nothing was done yet",
                              episode.front().episode, format_f64(episode.front().reward)));
  }
  return {};
}

Result<> description(Subject& subject) {
  const mortise_host* host = make_host();
  const Instance one = TRY(subject.create(host)), other = TRY(subject.create(host));
  const std::string text = TRY(call_describe(one)), again = TRY(call_describe(other));
  if (text != again) return broken("two instances describe themselves differently");
  const auto json = text.empty() ? Result<Json>(Json::object()) : parse_json(text, "description");
  if (!json.ok() || !json->is_object()) return broken("its description is not a JSON object: " + quote(text));
  const Json* const tools = json_find(*json, "tools");
  if (tools != nullptr && !tools->is_array()) return broken("'tools' in its description is not a list");
  const Json* const rewards = json_find(*json, "rewards");
  if (rewards != nullptr && !rewards->is_boolean()) return broken("'rewards' in its description is not true or false");
  if (rewards != nullptr && rewards->get<bool>()) return {};
  const auto starts = usual_starts();
  for (const Played& episode : TRY(play(one, starts))) {
    for (const EpisodeAnswer& answer : episode) {
      if (!std::isnan(answer.reward))
        return broken(fmt::format("gives the reward {}, and its description does not say \"rewards\": true",
                                  format_f64(answer.reward)));
    }
  }
  return {};
}

// After a crash of another episode's code the engine makes a new instance and plays the turns again.
Result<> replay(Subject& subject) {
  const mortise_host* host = make_host();
  const auto starts = usual_starts();
  std::vector<Played> first;
  {
    const Instance instance = TRY(subject.create(host));
    first = TRY(play(instance, starts));
  }
  const Instance fresh = TRY(subject.create(host));
  const auto again = TRY(play(fresh, starts));
  for (size_t i = 0; i < starts.size(); ++i)
    TRY(demand_same_episode(first[i], again[i], "played again in a new instance"));
  return {};
}

Result<> apart(Subject& subject) {
  const mortise_host* host = make_host();
  const auto starts = usual_starts();
  const Instance together = TRY(subject.create(host));
  const auto all = TRY(play(together, starts));
  const Instance alone = TRY(subject.create(host));
  for (size_t i = starts.size(); i-- > 0;) {
    const auto one = TRY(play(alone, {&starts[i], 1}));
    TRY(demand_same_episode(all[i], one.front(), "next to other episodes and alone"));
  }
  return {};
}

Result<> any_instance(Subject& subject) {
  if (read_abi_struct(&environment_slots(subject)).keeps_episodes != 0)
    return not_applicable("its episodes live in the instance that was reset for them");
  const mortise_host* host = make_host();
  const auto starts = usual_starts();
  const Instance one = TRY(subject.create(host)), other = TRY(subject.create(host));
  TRY(demand_answers(call_reset(one, starts), "reset"));
  for (const EpisodeStart& start : starts) {
    const EpisodeCall here = one_turn(one, start), there = one_turn(other, start);
    TRY(demand_answers(here, "step"));
    TRY(demand_answers(there, "step"));
    TRY(demand_same_episode(here.answers, there.answers,
                            "keeps_episodes is 0, and another instance answers otherwise"));
  }
  return {};
}

// Turns of an episode that nobody began, next to one that was.
Result<> unknown_episode(Subject& subject) {
  const auto slots = read_abi_struct(&environment_slots(subject));
  const Instance instance = TRY(subject.create(make_host()));
  const auto starts = usual_starts();
  const auto usual = TRY(play(instance, starts));
  const EpisodeStart& known = starts.front();
  EpisodeStart stranger = known;
  stranger.episode = 4711;
  TRY(demand_answers(call_reset(instance, {&known, 1}), "reset"));
  const EpisodeAction both[] = {usual_turn(stranger, 0), usual_turn(known, 0)};
  const EpisodeCall stepped = call_step(instance, both);
  TRY(demand_answers(stepped, "step"));
  const EpisodeAnswer& made_up = stepped.answers.front();
  if (slots.keeps_episodes != 0 && slots.reset != nullptr && made_up.failure.empty() && !std::isnan(made_up.reward))
    return broken(fmt::format("gives the reward {} to episode {}, which was never reset; call fail_row for it",
                              format_f64(made_up.reward), made_up.episode));
  if (usual.front().size() > 1)
    TRY(demand_same_episode({usual.front()[1]}, {stepped.answers.back()}, "next to an episode that was never reset"));
  const int64_t ids[] = {stranger.episode, known.episode};
  return demand_ok(call_close(instance, ids), "close");
}

// The turn of an episode that nobody began is what makes most environments fail.
Result<> failed_reward(Subject& subject) {
  const Instance instance = TRY(subject.create(make_host()));
  EpisodeStart stranger = usual_starts().front();
  stranger.episode = 4711;
  const EpisodeCall stepped = one_turn(instance, stranger);
  TRY(judge(stepped.call, "step"));
  const bool has_failed = stepped.call.code != MORTISE_OK || !stepped.answers.front().failure.empty();
  if (!has_failed) return not_applicable("no input of the check makes an episode fail");
  if (stepped.num_given.front() == 0) return {};
  return broken(fmt::format("episode {} failed and has an observation with the reward {} too; give none",
                            stranger.episode, format_f64(stepped.answers.front().reward)));
}

Result<> episode_ids(Subject& subject) {
  const Instance instance = TRY(subject.create(make_host()));
  auto starts = usual_starts();
  const auto usual = TRY(play(instance, starts));
  constexpr int64_t kFarEpisode = int64_t{1} << 40;
  for (EpisodeStart& start : starts) start.episode = kFarEpisode - 1000 * start.episode;
  const auto far = TRY(play(instance, starts));
  for (size_t i = 0; i < starts.size(); ++i)
    TRY(demand_same_episode(usual[i], far[i], "with large numbers of episodes"));
  return {};
}

// After close the number of an episode may come again.
Result<> closed(Subject& subject) {
  const Instance instance = TRY(subject.create(make_host()));
  const auto starts = usual_starts(), others = usual_starts(2);
  const auto first = TRY(play(instance, starts));
  TRY(play(instance, others));  // the same numbers
  const auto again = TRY(play(instance, starts));
  for (size_t i = 0; i < starts.size(); ++i)
    TRY(demand_same_episode(first[i], again[i], "after close, with the same number"));
  return {};
}

Result<> no_episodes(Subject& subject) {
  const Instance instance = TRY(subject.create(make_host()));
  TRY(demand_answers(call_reset(instance, {}), "reset of no episodes"));
  TRY(demand_answers(call_step(instance, {}), "step of no episodes"));
  return demand_ok(call_close(instance, {}), "close of no episodes");
}

// `turns` in episodes of their own, between two usual ones, which they must not disturb.
Result<> turns_beside_usual(Subject& subject, const std::vector<EpisodeAction>& turns, const std::string& what) {
  const Instance instance = TRY(subject.create(make_host()));
  const auto usual = usual_starts();
  const auto alone = TRY(play(instance, usual));
  std::vector<EpisodeStart> starts;
  std::vector<EpisodeAction> actions;
  for (size_t i = 0; i < turns.size() + 2; ++i) {
    const bool is_usual = i == 0 || i == turns.size() + 1;
    starts.push_back(usual[0]);
    starts.back().episode = is_usual && i == 0 ? usual[0].episode : 100 + static_cast<int64_t>(i);
    actions.push_back(is_usual ? usual_turn(starts.back(), 0) : turns[i - 1]);
    actions.back().episode = starts.back().episode;
  }
  TRY(demand_answers(call_reset(instance, starts), "reset"));
  const EpisodeCall stepped = call_step(instance, actions);
  TRY(demand_answers(stepped, "step"));
  for (const size_t i : {size_t{0}, actions.size() - 1}) {
    if (alone.front().size() > 1) TRY(demand_same_episode({alone.front()[1]}, {stepped.answers[i]}, "next to " + what));
  }
  return {};
}

Result<> hostile_text(Subject& subject) {
  constexpr size_t kSize = 1 << 20;
  std::vector<EpisodeAction> turns;
  for (const std::string& text :
       {std::string(), std::string("\xFF\xFE 4\xC3"), std::string("4\0 7", 4), std::string(kSize, '9'),
        std::string(kSize, '{'), std::string("-9223372036854775809"), std::string("1e999")}) {
    turns.push_back(usual_turn(usual_starts().front(), 0));
    turns.back().text = text;
  }
  turns.back().ids.clear();
  return turns_beside_usual(subject, turns, "a hostile text");
}

Result<> hostile_calls(Subject& subject) {
  std::vector<EpisodeAction> turns;
  for (const std::string& calls :
       {std::string(R"([{"error": "cannot be read"}])"),
        std::string(R"([{"name": "nobody_has_this", "arguments": {}}])"),
        std::string(R"([{"name": "", "arguments": {"a": [[[null]]], "a\u0000": 1e308}}])")}) {
    turns.push_back(usual_turn(usual_starts().front(), 0));
    turns.back().calls = calls;
  }
  turns.push_back(usual_turn(usual_starts().front(), 0));
  turns.back().finish_reason = MORTISE_FINISH_LENGTH;  // cut, so nothing follows
  turns.back().is_last = true;
  return turns_beside_usual(subject, turns, "a tool call that cannot be answered");
}

Result<> hostile_starts(Subject& subject) {
  const Instance instance = TRY(subject.create(make_host()));
  std::vector<EpisodeStart> starts = usual_starts();
  const EpisodeCall usual = call_reset(instance, {&starts.front(), 1});
  TRY(demand_answers(usual, "reset"));
  starts[1].columns = "{}";
  starts[2].columns = R"({"answer": null, "seed": -1, "prompt": 7, "messages": [[]]})";
  starts[3].columns = fmt::format(R"({{"answer": "{}"}})", std::string(1 << 20, 'x'));
  starts[4].messages = "[]";
  starts[5].seed = ~uint64_t{0};
  starts[5].is_validation = true;
  const EpisodeCall all = call_reset(instance, starts);
  TRY(demand_answers(all, "reset"));
  return demand_same_episode({usual.answers.front()}, {all.answers.front()}, "next to data rows without its columns");
}

Result<> episode_stops(Subject& subject) {
  const Instance instance = TRY(subject.create(make_host()));
  const auto starts = usual_starts();
  TRY(demand_answers(call_reset(instance, starts), "reset"));
  HostShape stopping;
  stopping.cancel_ns = 1;  // long ago
  (void)make_host(stopping);
  const SlotCall call = one_turn(instance, starts.front()).call;
  if (!call.thrown.empty()) return judge(call, "step");
  if (call.code == MORTISE_OK || call.code == MORTISE_CANCELLED || call.code == MORTISE_DEADLINE_EXCEEDED) return {};
  return broken(
      fmt::format("if the run is stopping, step returns {}; return MORTISE_CANCELLED", status_name(call.code)));
}

constexpr Case kEnvironmentCases[] = {
    {"environment.episodes", "R47", kEnvironment, "each episode of a call gets one observation, or fails alone",
     episodes},
    {"environment.messages", "R47", kEnvironment, "messages are a JSON list with a role and a content each", messages},
    {"environment.reset_reward", "R23", kEnvironment, "reset gives no reward, not even 0", reset_reward},
    {"environment.failed_reward", "R23", kEnvironment, "a failed episode has no observation, so no reward of 0",
     failed_reward},
    {"environment.description", "R47", kEnvironment, "its description is the same everywhere and true of its rewards",
     description},
    {"environment.replay", "R48", kEnvironment, "the same turns in a new instance get the same answers", replay},
    {"environment.apart", "R24", kEnvironment, "other episodes of a call change nothing", apart},
    {"environment.any_instance", "R48", kEnvironment, "with keeps_episodes 0 any instance takes a turn", any_instance},
    {"environment.unknown_episode", "R35", kEnvironment, "an episode that was never reset fails alone, without reward",
     unknown_episode},
    {"environment.episode_ids", "R35", kEnvironment, "it uses numbers of episodes as names, not as indices",
     episode_ids},
    {"environment.closed", "R48", kEnvironment, "after close nothing is left of an episode", closed},
    {"environment.no_episodes", "R34", kEnvironment, "it accepts calls without episodes", no_episodes},
    {"environment.hostile_text", "R42", kEnvironment, "no text of a turn fails more than its own episode",
     hostile_text},
    {"environment.hostile_calls", "R42", kEnvironment, "no tool call fails more than its own episode", hostile_calls},
    {"environment.hostile_starts", "R42", kEnvironment, "no data row fails more than its own episode", hostile_starts},
    {"environment.stops", "R36", kEnvironment, "if the run is stopping, it returns MORTISE_CANCELLED or the answer",
     episode_stops},
};

}  // namespace

std::span<const Case> environment_cases() { return kEnvironmentCases; }

}  // namespace mortise::check
