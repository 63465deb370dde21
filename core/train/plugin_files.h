// What the plugins of a config will read, looked at before any of them is made (`train --dry-run`): the files and
// folders that parameters of built-in plugins name, and the reward models among them. What a plugin from elsewhere
// reads, only it knows. Thread rule: free functions without state.
#pragma once

#include <string>
#include <vector>

#include "config/load.h"
#include "foundation/base/env.h"
#include "plugin/host/registry.h"

namespace mortise {

struct PluginFile {
  std::string key;  // of the config: "reward.0.path"
  Path path;
  bool is_model = false;   // the folder of a reward model
  bool is_python = false;  // may import modules beside it
};
// All that are given.
std::vector<PluginFile> plugin_files(const PluginRegistry& registry, const RunConfig& config);

// Each that is missing or no file, in one Error (kData) with the place where it is named. Nothing is read.
Result<> check_plugin_files(Env& env, const PluginRegistry& registry, const LoadedConfig& loaded);

// Bytes of the weights of all reward models, each as often as a reward loads it; an Error (kData) where a folder holds
// none.
Result<double> reward_model_bytes(Env& env, const PluginRegistry& registry, const LoadedConfig& loaded);

}  // namespace mortise
