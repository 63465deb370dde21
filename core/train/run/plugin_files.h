// What the plugins of a config will read, looked at before any of them is made: the files and folders that their
// parameters name (their roles say which), and what they tell by mortise.reads/1.
// Thread rule: free functions; one thread.
#pragma once

#include <string>
#include <vector>

#include "config/load.h"
#include "foundation/base/env.h"
#include "plugin/host/plugin_reads.h"
#include "plugin/host/registry.h"

namespace mortise {

struct PluginFile {
  std::string key;  // key of the config: "reward.0.path"
  Path path;
  ParamRole role = ParamRole::kFile;  // kFile, kFolder or kModel
  bool is_scored = false;             // a model that the engine loads for the plugin (mortise.score_model/1)
};
// All that are given.
std::vector<PluginFile> plugin_files(const PluginRegistry& registry, const RunConfig& config);

// What the plugins tell, in the order of the config. `key` is of the plugin's table ("reward.0"). Loads packs.
struct ToldReads {
  std::string key;
  PluginReads reads;
};
Result<std::vector<ToldReads>> told_reads(const PluginRegistry& registry, const RunConfig& config);

// Each that is missing or of the wrong sort, in one Error (kData) with the place where it is named. Nothing is read.
Result<> check_plugin_files(Env& env, const PluginRegistry& registry, const LoadedConfig& loaded);

// Bytes of the weights of all reward models, each as often as a reward loads it; an Error (kData) if a folder has none.
Result<double> reward_model_bytes(Env& env, const PluginRegistry& registry, const LoadedConfig& loaded);

}  // namespace mortise
