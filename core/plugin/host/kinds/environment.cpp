// Calls the slots of an environment, and checks that each episode gets one answer.
#include "plugin/host/kinds/environment.h"

#include <fmt/core.h>

#include <cmath>
#include <deque>

#include "foundation/base/log.h"
#include "foundation/formats/json.h"
#include "plugin/host/abi_struct.h"
#include "plugin/host/host_services.h"
#include "plugin/host/kinds/reward.h"
#include "plugin/host/kinds/slots.h"

namespace mortise {
namespace {

using Vtable = mortise_environment_vtable;

mortise_text text_view(std::string_view text) { return {text.data(), text.size()}; }
std::string text_copy(mortise_text text) {
  return text.data == nullptr ? std::string() : std::string(text.data, text.size);
}

// What a plugin handed over in one call.
struct Handed {
  std::vector<EpisodeAnswer> answers;
  std::vector<uint8_t> answered;
  std::string description;
  std::string fault;

  explicit Handed(size_t n) : answers(n), answered(n, 0) {}
  void take(const mortise_observation& in) {
    size_t i = 0;
    while (i < answers.size() && answers[i].episode != in.episode) ++i;
    if (i == answers.size()) {
      fault = fmt::format("gave an observation for episode {}, which is not of this call", in.episode);
      return;
    }
    EpisodeAnswer& answer = answers[i];
    if (answered[i] != 0) {
      answer.failure = "gave two observations for the episode; tell the pack's author";
      return;
    }
    answered[i] = 1;
    answer.done = in.done != 0;
    answer.reward = in.reward;
    answer.messages = text_copy(in.messages);
    answer.num_calls = in.num_calls;
    answer.num_failed_calls = in.num_failed_calls;
    if (std::isinf(in.reward)) answer.failure = "gave a reward that is not finite";
  }
};

void take_observation(void* context, const mortise_observation* given) noexcept {
  auto& handed = *static_cast<Handed*>(context);
  try {
    handed.take(read_abi_struct(given));
  } catch (const std::exception& e) {
    handed.fault = std::string("its observation could not be taken: ") + e.what();
  }
}

void take_description(void* context, mortise_text json) noexcept {
  auto& handed = *static_cast<Handed*>(context);
  try {
    handed.description = text_copy(json);
  } catch (const std::exception& e) {
    handed.fault = std::string("its description could not be taken: ") + e.what();
  }
}

mortise_observation_sink sink_to(Handed& handed) {
  auto sink = make_abi_struct<mortise_observation_sink>();
  sink.context = &handed;
  sink.observation = take_observation;
  sink.description = take_description;
  return sink;
}

void fail_all(std::vector<EpisodeAnswer>& answers, const std::string& why) {
  for (EpisodeAnswer& answer : answers) answer.failure = why;
}

// slot(call, sink) for these episodes; all have their answer afterwards.
template <class Slot>
std::vector<EpisodeAnswer> answer_all(PluginInstance& instance, std::string_view name, int64_t step, Handed handed,
                                      const CallOptions& options, Slot slot) {
  const mortise_observation_sink sink = sink_to(handed);
  CallOptions with_rows = options;
  with_rows.num_rows = static_cast<int64_t>(handed.answers.size());
  const auto called =
      instance.call(name, step, nullptr, with_rows, [&](mortise_call* call) { return slot(call, &sink); });
  if (!called.ok()) {
    fail_all(handed.answers, failure_text(called.error()));
    return std::move(handed.answers);
  }
  for (const FailedRow& failed : called->failed_rows) {
    const auto i = static_cast<size_t>(failed.row);
    handed.answers[i].failure = failed.text.empty() ? "it failed and gave no reason" : failed.text;
    handed.answered[i] = 1;
  }
  if (!handed.fault.empty()) fail_all(handed.answers, handed.fault);
  for (size_t i = 0; i < handed.answers.size(); ++i) {
    if (handed.answered[i] == 0 && handed.answers[i].failure.empty())
      handed.answers[i].failure = "gave no observation for the episode; tell the pack's author";
  }
  return std::move(handed.answers);
}

}  // namespace

Result<Environment> Environment::create(PluginRegistry& registry, std::string_view name, const Json& params,
                                        const RunKey& key) {
  return checked(TRY(PluginInstance::create(registry, MORTISE_KIND_ENVIRONMENT, name, params, key)));
}

Result<Environment> Environment::create(const LoadedPlugin& plugin, InstanceIdentity identity, const RunKey& key) {
  return checked(TRY(PluginInstance::create(plugin, std::move(identity), key)));
}

Result<Environment> Environment::checked(PluginInstance instance) {
  Environment made(std::move(instance));
  TRY(check_slots(made.instance_, {{"step", vtable_of<Vtable>(made.instance_).step != nullptr}}));
  return made;
}

bool Environment::keeps_episodes() const { return vtable_of<Vtable>(instance_).keeps_episodes != 0; }

Result<std::string> Environment::description() {
  const auto slot = catchable(vtable_of<Vtable>(instance_).describe);
  if (slot == nullptr) return std::string();
  Handed handed(0);
  const mortise_observation_sink sink = sink_to(handed);
  TRY(instance_.call("describe", 0, nullptr, {},
                     [&](mortise_call* call) { return slot(instance_.self(), call, &sink); }));
  if (!handed.fault.empty()) return instance_.error("describe", 0, handed.fault, "tell the pack's author");
  return handed.description;
}

std::vector<EpisodeAnswer> Environment::reset(std::span<const EpisodeStart> starts, const CallOptions& options) {
  Handed handed(starts.size());
  std::deque<mortise_episode_start> structs;
  std::vector<const mortise_episode_start*> pointers;
  for (size_t i = 0; i < starts.size(); ++i) {
    const EpisodeStart& start = starts[i];
    handed.answers[i].episode = start.episode;
    auto& out = structs.emplace_back(make_abi_struct<mortise_episode_start>());
    out.is_validation = start.is_validation ? 1 : 0;
    out.episode = start.episode;
    out.step = start.step;
    out.seed = start.seed;
    out.sample_index = start.sample_index;
    out.messages = text_view(start.messages);
    out.columns = text_view(start.columns);
    pointers.push_back(&out);
  }
  const auto slot = catchable(vtable_of<Vtable>(instance_).reset);
  if (slot == nullptr || starts.empty()) return std::move(handed.answers);
  return answer_all(instance_, "reset", starts.front().step, std::move(handed), options,
                    [&](mortise_call* call, const mortise_observation_sink* sink) {
                      return slot(instance_.self(), call, pointers.data(), pointers.size(), sink);
                    });
}

std::vector<EpisodeAnswer> Environment::act(std::span<const EpisodeAction> actions, const CallOptions& options) {
  Handed handed(actions.size());
  std::deque<mortise_episode_action> structs;
  std::vector<const mortise_episode_action*> pointers;
  for (size_t i = 0; i < actions.size(); ++i) {
    const EpisodeAction& action = actions[i];
    handed.answers[i].episode = action.episode;
    auto& out = structs.emplace_back(make_abi_struct<mortise_episode_action>());
    out.finish_reason = action.finish_reason;
    out.episode = action.episode;
    out.turn = action.turn;
    out.is_last = action.is_last ? 1 : 0;
    out.text = text_view(action.text);
    out.calls = text_view(action.calls);
    out.num_ids = static_cast<int64_t>(action.ids.size());
    out.ids = action.ids.data();
    pointers.push_back(&out);
  }
  if (actions.empty()) return {};
  const auto slot = catchable(vtable_of<Vtable>(instance_).step);
  return answer_all(instance_, "step", actions.front().step, std::move(handed), options,
                    [&](mortise_call* call, const mortise_observation_sink* sink) {
                      return slot(instance_.self(), call, pointers.data(), pointers.size(), sink);
                    });
}

void Environment::close(std::span<const int64_t> episodes, int64_t step) {
  const auto slot = catchable(vtable_of<Vtable>(instance_).close);
  if (slot == nullptr || episodes.empty()) return;
  const auto closed = instance_.call("close", step, nullptr, {}, [&](mortise_call* call) {
    return slot(instance_.self(), call, episodes.data(), episodes.size());
  });
  if (!closed.ok()) log_warn(closed.error().to_string());
}

}  // namespace mortise
