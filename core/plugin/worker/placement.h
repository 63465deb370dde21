// Decides where a plugin runs: in workers of its own, with which rights and variables, or in this process. Thread rule:
// free functions; no thread may change the environment meanwhile.
#pragma once

#include <nlohmann/json_fwd.hpp>

#include <optional>
#include <string>

#include "foundation/base/isolation.h"
#include "plugin/host/registry.h"
#include "plugin/worker/limits.h"
#include "plugin/worker/supervisor.h"

namespace mortise {

struct IsolationOptions {
  Isolation mode = Isolation::kAuto;
  std::string key = "plugins.isolation";  // that sets the mode, for messages
  int num_workers = 0;  // workers of a reward; 0: one per core of this process's share (own_cpus), eight at most
  WorkerLimits limits;
  bool bubblewrap = true;  // if the machine has it
};

struct WorkerPlace {
  WorkerLimits limits;  // with what the plugin declares that it needs
  PoolOptions pool;
};

// The workers for this plugin, or nothing: it runs in this process. `auto` is `process` where the machine can. The log
// says why a plugin gets no workers, and what rights it gets beyond the limits.
Result<std::optional<WorkerPlace>> place_plugin(const PluginRef& ref, const nlohmann::ordered_json& params,
                                                const IsolationOptions& options);

}  // namespace mortise
