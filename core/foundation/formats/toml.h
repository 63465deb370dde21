// TOML through toml++: reading with an Error of kind kConfig and file:line:column; nodes keep their source positions.
#pragma once

#include <toml++/toml.h>

#include <string>
#include <string_view>

#include "foundation/base/env.h"
#include "foundation/base/result.h"

namespace mortise {

// `where` is the file name used in errors.
Result<toml::table> parse_toml(std::string_view text, std::string_view where);
Result<toml::table> read_toml_file(Env& env, const Path& path);

// "file:line:column" of a node, or just the file where the node has no position.
[[nodiscard]] std::string toml_where(std::string_view file, const toml::node& node);

}  // namespace mortise
