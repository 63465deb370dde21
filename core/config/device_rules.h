// Rules for a run on a device (model.device): what its code does not compute yet. check_config and check_plugins ask, as
// does a run with "auto" before it takes a GPU. Pure functions.
#pragma once

#include <vector>

#include "config/key_use.h"
#include "config/load.h"

namespace mortise {

// What is wrong with model.device in this config; empty if nothing is. "auto" takes the CPU if a device cannot do what
// the run needs.
std::vector<Error> check_device(const LoadedConfig& loaded, ConfigUse use);

// Each setting that a device cannot have; empty if there is none. The run checks what depends on the number of ranks.
std::vector<Error> check_device_rules(const LoadedConfig& loaded, ConfigUse use);

// What the plugins of a run that trains need.
struct DevicePlugins {
  bool has_critic = false;     // the advantage estimator asks for values
  bool has_reference = false;  // the loss or a KL compares with one
};
// The same for settings whose effect depends on the plugins.
std::vector<Error> check_device_plugin_rules(const LoadedConfig& loaded, const DevicePlugins& plugins);

// model.device names a device (not "auto"), which must be able to do what the run needs.
[[nodiscard]] bool names_device(const LoadedConfig& loaded);

}  // namespace mortise
