// YAML as a ConfigNode tree, with libyaml, the parser under PyYAML and so under the other frameworks.
//
// Plain scalars are read as in OmegaConf: YAML 1.1's true/false/yes/no/on/off and null, integers, and floats, also
// where PyYAML would keep a text (1e-6). `raw` keeps the scalar as written. Refused with file:line:column: duplicate
// keys, tags other than the standard ones, several documents, depth above limits::kMaxJsonDepth, documents that aliases
// make too large. Merge keys (<<) work. Private to this room. Pure functions.
#pragma once

#include <string_view>

#include "config/config_node.h"

namespace mortise {

Result<ConfigNode> parse_yaml(std::string_view text, std::string_view where);

// The meaning of a plain scalar: null, bool, number or text.
Json yaml_scalar(std::string_view text);

}  // namespace mortise
