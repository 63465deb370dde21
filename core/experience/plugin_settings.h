// Converts a config's [plugins] and [[reward]] tables to options of the plugin host: where to look for packs, where
// plugins run, and what they may do there. Thread rule: free functions without state.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "config/load.h"
#include "plugin/host/registry.h"
#include "plugin/worker/isolated.h"
#include "plugin/worker/reward_function.h"

namespace mortise {

// `host_torch`: version of the libtorch in this program; "" without.
[[nodiscard]] RegistryOptions registry_options(const LoadedConfig& loaded, std::string_view host_torch);

// For one reward: its own `allow` adds to what [plugins] gives all rewards.
[[nodiscard]] WorkerLimits worker_limits(const PluginsConfig& plugins, const RewardConfig& reward);

// Where the file or the command line sets the memory of workers; "" where it is the default.
[[nodiscard]] std::string worker_memory_place(const LoadedConfig& loaded);

// Without the limits, which are each reward's own.
[[nodiscard]] IsolationOptions isolation_options(const PluginsConfig& plugins);

// How a loss or an estimator is isolated. `mode` is the value of `key`.
[[nodiscard]] IsolationOptions step_isolation(const LoadedConfig& loaded, Isolation mode, std::string_view key,
                                              const std::vector<WorkerRight>& allow = {});
// Where each of them runs, as its own key says.
[[nodiscard]] RemoteMaker policy_loss_workers(const LoadedConfig& loaded);
[[nodiscard]] RemoteMaker kl_loss_workers(const LoadedConfig& loaded);
[[nodiscard]] RemoteMaker kl_penalty_workers(const LoadedConfig& loaded);
[[nodiscard]] RemoteMaker advantage_workers(const LoadedConfig& loaded);

// row_timeout, or a fifth of timeout where it is not given.
[[nodiscard]] int64_t row_timeout_ms(const RewardConfig& reward);

}  // namespace mortise
