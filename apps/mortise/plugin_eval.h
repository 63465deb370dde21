// `mortise plugin eval`: runs one plugin on the inputs of a file, without a model and without a run.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
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
  // Where it runs and what it may do there.
  IsolationOptions isolation;
  int64_t timeout_ms = 0, row_timeout_ms = 0;  // 0: none. row_timeout_ms is for rewards
};

// Writes the outputs file and returns the plugin's metrics as a JSON object.
Result<Json> eval_plugin(PluginRegistry& registry, const PluginEval& eval);
// The formats of inputs and outputs, kind by kind.
[[nodiscard]] std::string plugin_eval_help();

// Part of it, in its own file: rewards run in workers.
Result<Json> eval_reward(PluginRegistry& registry, const PluginEval& eval);

// --set words as parameters of a plugin, converted to the declared types. Undeclared ones stay text, so that the check
// of parameters names them. A word for which `is_engine_key` is true goes to the plugin only if it declares it.
Result<Json> plugin_params(const PluginInfo& info, const PluginEval& eval, bool (*is_engine_key)(std::string_view));

// For plugins whose parameters are all theirs.
inline bool is_no_engine_key(std::string_view) { return false; }

}  // namespace mortise
