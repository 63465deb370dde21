// Environments that break one rule each. Without a fault the answer to a turn is a function of the episode's seed, the
// turn and the length of its text; the episode is done after three turns.
#include <cmath>
#include <map>
#include <string_view>

#include "mortise/kinds/environment.h"
#include "plugins.h"

namespace broken {
namespace {

struct Episode {
  uint64_t seed = 0;
  int64_t turns = 0;
};
// By instance and episode: an instance of the broken plugins has no place for them.
std::map<std::pair<const void*, int64_t>, Episode> open_episodes;
int64_t num_started = 0;  // episodes that environment_replay began, in all instances
Episode lots[64];         // where environment_episode_ids looks

int32_t describe(void* self, mortise_call*, const mortise_observation_sink* sink) noexcept {
  sink->description(sink->context,
                    text(of(self).is("environment_description") ? "{\"tools\": []}" : "{\"rewards\": true}"));
  return MORTISE_OK;
}

void give(const mortise_observation_sink* sink, int64_t episode, double reward, bool done, const char* messages) {
  mortise_observation out{};
  out.struct_size = sizeof out;
  out.done = done ? 1 : 0;
  out.episode = episode;
  out.reward = reward;
  out.messages = text(messages);
  sink->observation(sink->context, &out);
}

int32_t reset(void* self, mortise_call* call, const mortise_episode_start* const* starts, uint64_t num_starts,
              const mortise_observation_sink* sink) noexcept {
  const Instance& instance = of(self);
  if (num_starts == 0 && instance.is("environment_no_episodes"))
    return instance.host->fail(call, MORTISE_INVALID_ARGUMENT, text("there is nothing to reset"));
  for (uint64_t i = 0; i < num_starts; ++i) {
    const mortise_episode_start& in = *starts[i];
    if (instance.is("environment_hostile_starts") && in.columns.size < 10)
      return instance.host->fail(call, MORTISE_INVALID_ARGUMENT, text("the row has no answer"));
    Episode episode{in.seed, 0};
    if (instance.is("environment_replay")) episode.seed += uint64_t(num_started++);
    if (instance.is("environment_episode_ids")) lots[in.episode] = episode;
    const bool keeps_old = instance.is("environment_closed");
    if (keeps_old)
      open_episodes.emplace(std::pair(self, in.episode), episode);
    else
      open_episodes[{self, in.episode}] = episode;
    give(sink, in.episode, instance.is("environment_reset_reward") ? 0.0 : std::nan(""), false, "");
  }
  return MORTISE_OK;
}

// The episode of a turn; null for one that was never reset.
Episode* find_episode(const void* self, int64_t id) {
  const auto it = open_episodes.find({self, id});
  return it == open_episodes.end() ? nullptr : &it->second;
}

void step_one(const Instance& instance, Episode& episode, const mortise_episode_action& in, uint64_t place,
              const mortise_observation_sink* sink) {
  const uint64_t extra = instance.is("environment_apart") ? place : 0;
  const uint64_t number = (episode.seed + uint64_t(in.turn) + in.text.size + extra) % 7;
  ++episode.turns;
  if (instance.is("environment_episodes") && place == 2) return;
  const std::string said = instance.is("environment_messages")
                               ? std::string("well done")
                               : "[{\"role\": \"user\", \"content\": \"" + std::to_string(number) + "\"}]";
  give(sink, in.episode, double(number), episode.turns == 3, said.c_str());
}

// Whether the whole call fails for a turn of these.
bool gives_up(const Instance& instance, const mortise_episode_action& in) {
  if (instance.is("environment_hostile_text") && in.text.size == 0) return true;
  return instance.is("environment_hostile_calls") && std::memcmp(in.calls.data, "[]", 2) != 0;
}

int32_t step(void* self, mortise_call* call, const mortise_episode_action* const* actions, uint64_t num_actions,
             const mortise_observation_sink* sink) noexcept {
  const Instance& instance = of(self);
  const mortise_host* host = instance.host;
  if (instance.is("environment_stops") && host->cancelled != nullptr && host->cancelled(call) != 0)
    return host->fail(call, MORTISE_INTERNAL, text("I was told to stop"));
  for (uint64_t i = 0; i < num_actions; ++i) {
    const mortise_episode_action& in = *actions[i];
    if (gives_up(instance, in)) return host->fail(call, MORTISE_INVALID_ARGUMENT, text("this turn is too much for me"));
    Episode* episode = instance.is("environment_episode_ids") ? &lots[in.episode] : find_episode(self, in.episode);
    if (episode == nullptr && instance.is("environment_unknown_episode")) {
      give(sink, in.episode, 0.0, true, "");
    } else if (episode == nullptr) {
      host->fail_row(call, int64_t(i), MORTISE_NOT_FOUND, text("nobody began this episode"));
      if (instance.is("environment_failed_reward")) give(sink, in.episode, 0.0, true, "");
    } else {
      step_one(instance, *episode, in, i, sink);
    }
  }
  return MORTISE_OK;
}

int32_t close(void* self, mortise_call*, const int64_t* episodes, uint64_t num_episodes) noexcept {
  if (of(self).is("environment_closed")) return MORTISE_OK;
  for (uint64_t i = 0; i < num_episodes; ++i) open_episodes.erase({self, episodes[i]});
  return MORTISE_OK;
}

// Says that it keeps no episodes, and looks for them in the instance.
constexpr int32_t keeps_episodes(std::string_view name) { return name == "environment_any_instance" ? 0 : 1; }

}  // namespace
}  // namespace broken

#define ENVIRONMENT(name)                                                                                             \
  BROKEN_PLUGIN(environment, ENVIRONMENT, name, 0, broken::keeps_episodes(#name), 0, broken::describe, broken::reset, \
                broken::step, broken::close)
ENVIRONMENT(fine_environment)
ENVIRONMENT(environment_episodes)
ENVIRONMENT(environment_messages)
ENVIRONMENT(environment_reset_reward)
ENVIRONMENT(environment_failed_reward)
ENVIRONMENT(environment_description)
ENVIRONMENT(environment_replay)
ENVIRONMENT(environment_apart)
ENVIRONMENT(environment_any_instance)
ENVIRONMENT(environment_unknown_episode)
ENVIRONMENT(environment_episode_ids)
ENVIRONMENT(environment_closed)
ENVIRONMENT(environment_no_episodes)
ENVIRONMENT(environment_hostile_text)
ENVIRONMENT(environment_hostile_calls)
ENVIRONMENT(environment_hostile_starts)
ENVIRONMENT(environment_stops)
