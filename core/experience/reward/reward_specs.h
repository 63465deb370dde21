// The [[reward]] tables of a configuration as what RewardRunner makes rewards from. Thread rule: a free function without
// state.
#pragma once

#include <vector>

#include "config/load.h"
#include "experience/reward/reward_runner.h"
#include "foundation/formats/json.h"
#include "plugin/host/registry.h"

namespace mortise {

// One for each table, in their order. `max_steps`: the steps of the training, for plugins that ask for them; null where
// nothing is trained. An Error if a plugin is not in the registry.
Result<std::vector<RewardSpec>> reward_specs(const LoadedConfig& loaded, PluginRegistry& registry,
                                             const Json& max_steps);

}  // namespace mortise
