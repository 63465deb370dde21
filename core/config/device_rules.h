// Rules for a run on a device (model.device): what its code does not compute yet. check_config asks, and a run with "auto"
// before it takes a GPU. Pure function.
#pragma once

#include <vector>

#include "config/key_use.h"
#include "config/load.h"

namespace mortise {

// Each setting that a device cannot have; empty if there is none. What depends on the number of ranks or on plugins, the
// run checks.
std::vector<Error> check_device_rules(const LoadedConfig& loaded, ConfigUse use);

}  // namespace mortise
