// From the tree of values to the RunConfig: names, types, ranges and choices, all problems collected.
//
// Private to this room. Works on the list of fields.h alone; the only keys it knows by name are those of open tables.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "config/config_node.h"
#include "config/fields.h"
#include "config/load.h"

namespace mortise {

// Fills out.config (keeps what the tree does not set) and out.positions.
void decode_tree(const ConfigNode& root, LoadedConfig& out, std::vector<Error>& problems);

// "did you mean 'actor.optim.lr'?" for a key that is not in `table` ("" = top): the same leaf elsewhere, a peer's name
// for a key, or the nearest spelling. Empty if nothing is near.
std::string suggest_key(std::string_view table, std::string_view leaf);

}  // namespace mortise
