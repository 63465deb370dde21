// Converts a config's [plugins] and [[reward]] tables to options of the plugin host: where to look for packs, where
// rewards run, and what they may do there. Thread rule: free functions without state.
#pragma once

#include <string_view>

#include "config/load.h"
#include "plugin/host/registry.h"
#include "plugin/worker/reward_function.h"

namespace mortise {

// `host_torch`: version of the libtorch in this program; "" without.
[[nodiscard]] RegistryOptions registry_options(const LoadedConfig& loaded, std::string_view host_torch);

// For one reward: its own `allow` adds to what [plugins] gives all rewards.
[[nodiscard]] WorkerLimits worker_limits(const PluginsConfig& plugins, const RewardConfig& reward);

// Without the limits, which are each reward's own.
[[nodiscard]] IsolationOptions isolation_options(const PluginsConfig& plugins);

// row_timeout, or a fifth of timeout where it is not given.
[[nodiscard]] int64_t row_timeout_ms(const RewardConfig& reward);

}  // namespace mortise
