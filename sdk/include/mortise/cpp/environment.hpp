/* Environment: what a row meets between its turns. mortise.hpp does not include this header.
 *
 * The derived class has step(), and reset() and close() if its episodes have state. An exception fails the one episode
 * of the call: its row gets no reward, and the run continues. See kinds/environment.h for the life of an episode.
 */
#ifndef MORTISE_CPP_ENVIRONMENT_HPP_
#define MORTISE_CPP_ENVIRONMENT_HPP_

#include <limits>
#include <string>
#include <string_view>

#include "../kinds/environment.h"
#include "plugin.hpp"

namespace mortise {

struct EpisodeStart {
  std::int64_t episode;
  std::uint64_t seed;         // the same for all rows of a prompt
  std::int64_t sample_index;  // the row's place among those
  std::string_view messages;  // JSON list
  std::string_view columns;   // JSON object
  std::int64_t step;
  bool is_validation;
};

struct EpisodeAction {
  std::int64_t episode;
  std::int64_t turn;  // from 0
  std::string_view text;
  std::string_view calls;  // JSON list
  Span<const std::int64_t> ids;
  std::int32_t finish_reason;
  bool is_last;
};

struct Observation {
  std::string messages = {};  // JSON list of {"role", "content"}; empty: none
  double reward = std::numeric_limits<double>::quiet_NaN();
  bool done = false;
  std::int64_t num_calls = 0, num_failed_calls = 0;
};

class Environment : public Plugin {
 public:
  static constexpr bool keeps_episodes = true;
  // A JSON object: {"tools": [...], "rewards": true}. By default there are rewards and no tools.
  virtual std::string description() { return "{\"rewards\": true}"; }
  virtual Observation reset(const EpisodeStart&, Call) { return {}; }
  virtual Observation step(const EpisodeAction& action, Call call) = 0;
  virtual void close(std::int64_t /*episode*/, Call) {}
};

namespace detail {

template <class T>
struct EnvironmentPlugin {
  static_assert(std::is_base_of_v<Environment, T>,
                "MORTISE_ENVIRONMENT takes a class that derives from mortise::Environment");

  static void give(const mortise_observation_sink* sink, std::int64_t episode, const Observation& from) {
    mortise_observation out{};
    out.struct_size = sizeof out;
    out.done = from.done ? 1 : 0;
    out.episode = episode;
    out.reward = from.reward;
    out.messages = to_text(from.messages);
    out.num_calls = from.num_calls;
    out.num_failed_calls = from.num_failed_calls;
    sink->observation(sink->context, &out);
  }
  // answer(i) for each of n episodes. One that throws fails alone.
  template <class F>
  static void answer_each(std::uint64_t n, Call call, const F& answer) {
    for (std::uint64_t i = 0; i < n; ++i) {
      if (call.cancelled()) fail(MORTISE_CANCELLED, "cancelled");
      try {
        answer(i);
      } catch (const Failure& e) {
        call.fail_row(std::int64_t(i), e.code, e.what());
      } catch (const std::exception& e) {
        call.fail_row(std::int64_t(i), MORTISE_INTERNAL, e.what());
      }
    }
  }

  static std::int32_t describe_it(void* self, mortise_call* raw,
                                  const mortise_observation_sink* sink) MORTISE_NOEXCEPT {
    return run<T>(self, raw, [&](T& plugin, Call) {
      const std::string text = plugin.description();
      sink->description(sink->context, to_text(text));
    });
  }
  static std::int32_t reset(void* self, mortise_call* raw, const mortise_episode_start* const* episodes,
                            std::uint64_t n, const mortise_observation_sink* sink) MORTISE_NOEXCEPT {
    return run<T>(self, raw, [&](T& plugin, Call call) {
      answer_each(n, call, [&](std::uint64_t i) {
        const mortise_episode_start& in = *episodes[i];
        give(sink, in.episode,
             plugin.reset({in.episode, in.seed, in.sample_index, view(in.messages), view(in.columns), in.step,
                           in.is_validation != 0},
                          call));
      });
    });
  }
  static std::int32_t step(void* self, mortise_call* raw, const mortise_episode_action* const* actions, std::uint64_t n,
                           const mortise_observation_sink* sink) MORTISE_NOEXCEPT {
    return run<T>(self, raw, [&](T& plugin, Call call) {
      answer_each(n, call, [&](std::uint64_t i) {
        const mortise_episode_action& in = *actions[i];
        give(sink, in.episode,
             plugin.step({in.episode,
                          in.turn,
                          view(in.text),
                          view(in.calls),
                          {in.ids, in.num_ids},
                          in.finish_reason,
                          in.is_last != 0},
                         call));
      });
    });
  }
  static std::int32_t close(void* self, mortise_call* raw, const std::int64_t* episodes,
                            std::uint64_t n) MORTISE_NOEXCEPT {
    return run<T>(self, raw, [&](T& plugin, Call call) {
      for (std::uint64_t i = 0; i < n; ++i) plugin.close(episodes[i], call);
    });
  }
  static constexpr mortise_environment_vtable vtable = {sizeof(mortise_environment_vtable),
                                                        0,
                                                        create<T>,
                                                        destroy<T>,
                                                        get_extension<T>,
                                                        T::keeps_episodes ? 1 : 0,
                                                        0,
                                                        describe_it,
                                                        reset,
                                                        step,
                                                        close};
  static mortise_descriptor describe(const char* name) {
    return detail::describe<T>(MORTISE_KIND_ENVIRONMENT, name, MORTISE_COUPLING_TOKEN, &vtable);
  }
};

}  // namespace detail
}  // namespace mortise

#define MORTISE_ENVIRONMENT(name, ...) MORTISE_PLUGIN(name, EnvironmentPlugin<__VA_ARGS__>)

#endif  // MORTISE_CPP_ENVIRONMENT_HPP_
