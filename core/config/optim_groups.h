// Parameter groups: optim.groups, which gives some parameters settings of their own or freezes them.
//
// A group is chosen by a pattern in the parameter's name; the first that matches counts. What the names are, only the
// model knows (train/run/parameter_groups.h). Pure functions.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "config/load.h"
#include "parse/pattern.h"

namespace mortise {

// [actor.optim], or [critic.optim] if `table` names it.
inline const OptimConfig& optim_of(const RunConfig& config, std::string_view table) {
  return table == "critic.optim" ? config.critic.optim : config.actor.optim;
}

struct OptimGroup {
  std::string key;                       // "actor.optim.groups.embeddings"
  std::string match;                     // as written
  parse::Pattern pattern;                // compiled from `match`
  double lr_scale = 1.0;                 // factor of the learning rate
  std::optional<double> weight_decay{};  // for all its parameters, biases and norms too; null: as without a group
  std::optional<bool> uses_muon{};       // null: as without a group
  bool freeze = false;
};

// The groups of `table` ("actor.optim", "critic.optim") in their order. One Error with every problem of them.
Result<std::vector<OptimGroup>> optim_groups(const LoadedConfig& loaded, const std::string& table);

}  // namespace mortise
