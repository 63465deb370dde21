// The configuration keys that a command takes on its command line, by their records. Any other key would have no effect.
#pragma once

#include <span>
#include <string>

#include "config/key_use.h"

namespace mortise {

std::span<const std::string> keys_of(ConfigUse command);

// `usage` with a list of them, by table, in place of the line "<keys>".
std::string usage_with_keys(std::string usage, ConfigUse command);

}  // namespace mortise
