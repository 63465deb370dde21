// unused_keys: the keys that were set although, as the others stand, nothing reads them: a warning each, with the place
// and what it is that they need. What only a plugin's table can tell (algorithm.gamma, [critic], [ref]) is told where
// plugins are looked up (train/check_plugins). Pure; part of check_config.
#pragma once

#include <vector>

#include "config/check.h"

namespace mortise {

std::vector<Error> unused_keys(const LoadedConfig& loaded, ConfigUse use);

}  // namespace mortise
