// unused_keys: a warning for each key that was set although nothing reads it with the other settings. The warning has
// the place and the reason. The rules are those of the records (fields.h). Keys whose effect depends on a plugin's
// table (algorithm.gamma, [critic], [ref]) are checked in train/check_plugins. Pure; part of check_config.
#pragma once

#include <vector>

#include "config/check.h"

namespace mortise {

std::vector<Error> unused_keys(const LoadedConfig& loaded, ConfigUse use);

}  // namespace mortise
