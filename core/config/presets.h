// Presets: names for groups of keys, as published. load.h says what a preset overrides.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace mortise {

struct Preset {
  std::string name;
  std::string doc;                    // what it is, its source, and what it leaves out
  std::vector<std::string> settings;  // as overrides: "actor.policy_loss.loss_mode=gspo"
};

std::span<const Preset> all_presets();

const Preset* find_preset(std::string_view name);

// verl's named sets of [algorithm.rollout_correction]; settings are the whole keys.
std::span<const Preset> rollout_correction_presets();

}  // namespace mortise
