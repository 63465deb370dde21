// Converts [plugins] and [[reward]] tables to options of the plugin host.
#include "experience/plugin_settings.h"

#include <algorithm>

namespace mortise {

RegistryOptions registry_options(const LoadedConfig& loaded, std::string_view host_torch) {
  const PluginsConfig& plugins = loaded.config.plugins;
  RegistryOptions options;
  options.host_torch = host_torch;
  for (const std::string& file : plugins.files) options.files.emplace_back(file, loaded.where("plugins.files"));
  for (const std::string& path : plugins.paths) options.paths.emplace_back(path, loaded.where("plugins.paths"));
  return options;
}

WorkerLimits worker_limits(const PluginsConfig& plugins, const RewardConfig& reward) {
  const auto allowed = [&](WorkerRight what) {
    return std::find(reward.allow.begin(), reward.allow.end(), what) != reward.allow.end();
  };
  WorkerLimits limits;
  limits.memory_bytes = plugins.worker_memory_mib << 20;
  limits.file_bytes = plugins.worker_file_mib << 20;
  limits.open_files = plugins.worker_open_files;
  limits.cpu_ms = plugins.worker_cpu_time.count();
  limits.num_cpus = plugins.worker_cpus.value_or(0);
  limits.network = allowed(WorkerRight::kNetwork);
  limits.write_files = allowed(WorkerRight::kFiles);
  limits.start_programs = allowed(WorkerRight::kPrograms);
  limits.env = plugins.env;
  return limits;
}

std::string worker_memory_place(const LoadedConfig& loaded) {
  const char* const key = "plugins.worker_memory_mib";
  return loaded.is_set(key) ? loaded.where(key) : "";
}

IsolationOptions isolation_options(const PluginsConfig& plugins) {
  IsolationOptions options;
  options.mode = plugins.isolation;
  options.num_workers = static_cast<int>(plugins.num_workers.value_or(0));
  options.bubblewrap = plugins.bubblewrap;
  return options;
}

IsolationOptions step_isolation(const LoadedConfig& loaded, Isolation mode, std::string_view key,
                                const std::vector<WorkerRight>& allow) {
  const PluginsConfig& plugins = loaded.config.plugins;
  IsolationOptions options = isolation_options(plugins);
  options.mode = mode;
  options.key = key;
  RewardConfig rights;
  rights.allow = allow;
  options.limits = worker_limits(plugins, rights);
  options.limits.memory_where = worker_memory_place(loaded);
  // These two are about rows: call_timeout limits a call of a loss, and the trainer waits for it with all its
  // processors.
  options.limits.cpu_ms = 0;
  options.limits.num_cpus = 0;
  return options;
}

RemoteMaker policy_loss_workers(const LoadedConfig& loaded) {
  return isolated(step_isolation(loaded, loaded.config.actor.policy_loss.isolation, "actor.policy_loss.isolation"));
}
RemoteMaker kl_loss_workers(const LoadedConfig& loaded) {
  return isolated(step_isolation(loaded, loaded.config.actor.kl_isolation, "actor.kl_isolation"));
}
RemoteMaker kl_penalty_workers(const LoadedConfig& loaded) {
  return isolated(step_isolation(loaded, loaded.config.algorithm.kl_isolation, "algorithm.kl_isolation"));
}
RemoteMaker advantage_workers(const LoadedConfig& loaded) {
  return isolated(step_isolation(loaded, loaded.config.algorithm.adv_isolation, "algorithm.adv_isolation"));
}

int64_t row_timeout_ms(const RewardConfig& reward) {
  return reward.row_timeout.count() > 0 ? reward.row_timeout.count() : (reward.timeout.count() + 4) / 5;
}

}  // namespace mortise
