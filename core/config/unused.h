// unused_keys: a warning for each key that was set although nothing reads it with the other settings. The warning has
// the place and the reason. The rules are those of the records (fields.h). Some ask the tables of the plugins in use
// (algorithm.gamma, [critic], [ref]): check_config leaves those out, train/run/check_plugins asks for them. Pure.
#pragma once

#include <vector>

#include "config/check.h"
#include "config/fields.h"

namespace mortise {

// The rules that ask no plugin; with `plugins`, those that do.
std::vector<Error> unused_keys(const LoadedConfig& loaded, ConfigUse use, const PluginFacts* plugins = nullptr);

}  // namespace mortise
