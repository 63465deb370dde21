// See reward_specs.h.
#include "experience/reward/reward_specs.h"

#include <fmt/core.h>

#include <utility>

#include "experience/engine_params.h"
#include "experience/plugin_settings.h"

namespace mortise {

Result<std::vector<RewardSpec>> reward_specs(const LoadedConfig& loaded, PluginRegistry& registry,
                                             const Json& max_steps) {
  std::vector<RewardSpec> specs;
  for (const RewardConfig& reward : loaded.config.reward) {
    const PluginRef ref = TRY(registry.find("reward", reward.use));
    const std::string where = loaded.where(fmt::format("reward.{}", specs.size()));
    WorkerLimits limits = worker_limits(loaded.config.plugins, reward);
    limits.memory_where = worker_memory_place(loaded);
    specs.push_back({reward.use, reward.name, where, reward.weight, reward.timeout.count(), row_timeout_ms(reward),
                     std::move(limits), offer_params(*ref.plugin, reward.params, {{"max_steps", max_steps}}),
                     reward.used_in});
  }
  return specs;
}

}  // namespace mortise
