// Starts the environment, reads its description, and makes the renderer of observations.
#include "train/run/turn_parts.h"

#include <fmt/core.h>

#include <utility>

#include "experience/plugin_settings.h"
#include "foundation/base/at_place.h"
#include "train/resume/pack_lock.h"
#include "train/sampling/shared_episodes.h"

namespace mortise {

namespace {

Result<Json> description_of(const EpisodeRunner& runner) {
  const std::string& text = runner.description();
  if (text.empty()) return Json::object();
  auto parsed = parse_json(text, runner.label() + ": its description");
  if (parsed.ok() && parsed->is_object()) return parsed;
  return Error{ErrorKind::kPlugin, "its description is not a JSON object", runner.label(), "tell the pack's author"};
}

PluginUse use_of_environment(const RunConfig& config) {
  PluginUse found;
  for (PluginUse& use : plugin_uses(config)) {
    if (use.kind == "environment") found = std::move(use);
  }
  return found;
}

}  // namespace

Result<StartedEnvironment> start_environment(PluginRegistry& registry, const LoadedConfig& loaded, const RunKey& key) {
  const RunConfig& config = loaded.config;
  const MultiTurnConfig& turns = config.rollout.multi_turn;
  RewardConfig rights;
  rights.allow = turns.allow;
  IsolationOptions isolation = isolation_options(config.plugins);
  isolation.limits = worker_limits(config.plugins, rights);
  isolation.limits.memory_where = worker_memory_place(loaded);
  const PluginUse use = use_of_environment(config);
  StartedEnvironment out;
  out.runner =
      TRY(at_place(loaded.where("rollout.multi_turn.environment"),
                   make_episode_runner(registry, use.name, use.params, key, isolation, turns.timeout.count())));
  const Json description = TRY(description_of(*out.runner));
  const Json* const tools = json_find(description, "tools");
  if (tools != nullptr && tools->is_array() && !tools->empty()) out.tools = *tools;
  const Json* const rewards = json_find(description, "rewards");
  out.gives_rewards = rewards != nullptr && rewards->is_boolean() && rewards->get<bool>();
  return out;
}

Result<StartedEnvironment> start_rewarded_environment(PluginRegistry& registry, const LoadedConfig& loaded,
                                                      const RunKey& key) {
  StartedEnvironment environment = TRY(start_environment(registry, loaded, key));
  if (!loaded.config.reward.empty()) return environment;
  if (environment.gives_rewards && loaded.config.rollout.multi_turn.reward_weight != 0) return environment;
  if (environment.gives_rewards)
    return Error{
        ErrorKind::kConfig,
        "there is no reward: no table [[reward]], and rollout.multi_turn.reward_weight is 0, so nothing learns "
        "from the environment's rewards",
        loaded.where("rollout.multi_turn.reward_weight"), "add a table [[reward]], or set the weight to 1"};
  return Error{ErrorKind::kConfig, "there is no reward: no table [[reward]], and the environment gives none",
               loaded.where("rollout.multi_turn.environment"), "add a table [[reward]]"};
}

Result<std::shared_ptr<TurnParts>> make_turn_parts(StartedEnvironment environment, const LoadedConfig& loaded,
                                                   const PolicyFolder& folder, const PromptEncoder& encoder,
                                                   const Sampling& sampling, Communicator& ranks) {
  const RunConfig& config = loaded.config;
  const auto group_size = static_cast<int>(config.rollout.tensor_model_parallel_size);
  if (group_size > 1 && ranks.size() > 1)
    environment.runner = share_episodes(std::move(environment.runner), ranks, group_size);
  TurnRenderer renderer = TRY(TurnRenderer::create(folder.tokenizer, encoder.chats(), sampling.stop_ids,
                                                   /*has_tools=*/!environment.tools.is_null()));
  return std::make_shared<TurnParts>(TurnParts{config.rollout.multi_turn, std::move(environment.runner),
                                               std::move(renderer), std::move(environment.tools),
                                               config.data.max_prompt_length, config.plugins.max_failed_fraction});
}

}  // namespace mortise
