// `mortise plugin eval`: one plugin, alone, on inputs of a file. No model, no run.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <utility>
#include <vector>

#include "experience/data/column_types.h"
#include "foundation/formats/json.h"
#include "plugin/host/instance.h"
#include "plugin/worker/reward_function.h"

namespace mortise {

struct PluginEval {
  std::string kind;  // short: "policy_loss"
  std::string name;
  std::filesystem::path inputs;
  std::filesystem::path outputs;
  std::vector<std::pair<std::string, std::string>> settings;  // --set, in order
  DeclaredColumns columns;                                    // --column, of rewards
  uint64_t seed = 0;
  int64_t step = 1;
  // Of rewards: where they run and what they may do there.
  IsolationOptions isolation;
  int64_t timeout_ms = 0, row_timeout_ms = 0;  // 0: none
};

// Each writes the outputs file and returns the plugin's metrics as a JSON object.
Result<Json> eval_policy_loss(PluginRegistry& registry, const PluginEval& eval);
Result<Json> eval_kl_estimator(PluginRegistry& registry, const PluginEval& eval);
Result<Json> eval_advantage_estimator(PluginRegistry& registry, const PluginEval& eval);
Result<Json> eval_reward(PluginRegistry& registry, const PluginEval& eval);

// --set words as parameters of a plugin: each becomes the declared type. Undeclared ones stay text, so that the check
// of the parameters names them. A word for which `is_engine_key` holds goes to the plugin only if it declares it.
Result<Json> plugin_params(const PluginInfo& info, const PluginEval& eval, bool (*is_engine_key)(std::string_view));

}  // namespace mortise
