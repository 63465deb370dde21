// The settings that a policy loss runs with: the config's, and the loss's own for what the config does not set.
//
// The engine knows no loss by name. A loss declares its own values in its parameter table: the default of a parameter,
// the default of `loss_agg_mode` for the aggregation, and `published_X` for the value of X in its paper if the default
// of X differs (it is verl's, as in its reference tensors). A run uses published_X if the config does not set X. Pure
// functions.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "config/load.h"
#include "plugin/pack/pack_info.h"

namespace mortise {

class PluginRegistry;

// The parameters of the loss: the table [actor.policy_loss], then the keys of [actor] that were set (clip_ratio sets
// clip_ratio_low and clip_ratio_high too), then published values.
Json policy_loss_params(const PluginInfo& loss, const RunConfig& config);

// A setting for which a loss has a published value, or the aggregation.
struct LossSetting {
  std::string name;   // "clip_ratio_low"
  std::string value;  // as in the run
  std::string own;    // the loss's
  std::string where;  // place of the key that set it; empty if none did
};
std::vector<LossSetting> loss_settings(const PluginInfo& loss, const LoadedConfig& loaded);

// "policy loss gspo: clip_ratio_low 0.0003, clip_ratio_high 0.0004, loss_agg_mode token-mean (run.toml:3:1; its own:
// seq-mean-token-mean)".
std::string describe_loss(const PluginInfo& loss, const LoadedConfig& loaded);

// For config_to_toml: the value of a key that the loss decides ("actor.clip_ratio_low" -> "gspo: 0.0003").
std::map<std::string, std::string> loss_remarks(const PluginInfo& loss, const LoadedConfig& loaded);
// The same for the loss that the configuration names; nothing if it cannot be found.
std::map<std::string, std::string> loss_remarks(const PluginRegistry& registry, const LoadedConfig& loaded);

}  // namespace mortise
