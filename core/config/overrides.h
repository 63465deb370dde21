// Overrides from the command line: `rollout.n=16`, `reward.0.weight=2`, `~actor.clip_ratio_low`, `+a.b=[x,y]`.
//
// Private to this room. A value is TOML if it can be read as TOML, else null, true or false in any case, a list of such
// values in brackets, or the bare text.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "config/config_node.h"

namespace mortise {

// Applies one override to the tree. `where` names it in errors and positions, e.g. "override 'a.b=c'".
Result<> apply_override(ConfigNode& root, std::string_view text, const std::string& where);

// True for key=value and ~key: tells overrides from file names on a command line.
bool is_override(std::string_view argument);

}  // namespace mortise
