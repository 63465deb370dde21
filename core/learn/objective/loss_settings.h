// The settings that a policy loss runs with: what the config sets, and the loss's own values for what it does not.
//
// The engine knows no loss by name. A loss tells its own values in its parameter table: the default of a parameter, of
// `loss_agg_mode` for the aggregation, and of `published_X` for the value of X in its paper if the default of X is
// another (verl's, which its reference tensors have). A run takes published_X if nobody sets X. Pure functions.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "config/load.h"
#include "plugin/pack/pack_info.h"

namespace mortise {

// The parameters of the loss: the table [actor.policy_loss], then the keys of [actor] that were set (clip_ratio sets
// clip_ratio_low and clip_ratio_high too), then published values.
Json policy_loss_params(const PluginInfo& loss, const ActorConfig& actor);

// A setting for which a loss has a published value, or the aggregation.
struct LossSetting {
  std::string name;   // "clip_ratio_low"
  std::string value;  // as the run has it
  std::string own;    // the loss's
  std::string where;  // of the key that set it; empty: nobody did
};
std::vector<LossSetting> loss_settings(const PluginInfo& loss, const LoadedConfig& loaded);

// "policy loss gspo: clip_ratio_low 0.0003, clip_ratio_high 0.0004, loss_agg_mode token-mean (run.toml:3:1; its own:
// seq-mean-token-mean)".
std::string describe_loss(const PluginInfo& loss, const LoadedConfig& loaded);

// For config_to_toml: what a key comes to that leaves the value to the loss ("actor.clip_ratio_low" -> "gspo: 0.0003").
std::map<std::string, std::string> loss_remarks(const PluginInfo& loss, const LoadedConfig& loaded);

}  // namespace mortise
