// What rows with several turns need (rollout.multi_turn): the environment, and what it tells of itself.
// Thread rule: one thread.
#pragma once

#include <memory>

#include "config/load.h"
#include "dist/communicator.h"
#include "experience/rollout/turns/turn_loop.h"
#include "plugin/host/registry.h"
#include "train/run/policy_folder.h"

namespace mortise {

struct StartedEnvironment {
  std::unique_ptr<EpisodeRunner> runner;
  Json tools;                  // for prompts; null: none
  bool gives_rewards = false;  // its observations may have rewards
};

// The environment of the config, in its workers. An Error has the place of rollout.multi_turn.environment.
Result<StartedEnvironment> start_environment(PluginRegistry& registry, const LoadedConfig& loaded, const RunKey& key);
// The same for a run, which needs rewards: an Error if neither the environment nor a table [[reward]] gives them.
Result<StartedEnvironment> start_rewarded_environment(PluginRegistry& registry, const LoadedConfig& loaded,
                                                      const RunKey& key);

// Takes the environment, which ranks that sample together share. An Error if the chat template cannot continue a
// conversation. Borrows the tokenizer and the ranks.
Result<std::shared_ptr<TurnParts>> make_turn_parts(StartedEnvironment environment, const LoadedConfig& loaded,
                                                   const PolicyFolder& folder, const PromptEncoder& encoder,
                                                   const Sampling& sampling, Communicator& ranks);

}  // namespace mortise
