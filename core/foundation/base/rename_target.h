// Where a file that is to appear whole goes: written beside the place, then renamed to it.
#pragma once

#include <optional>

#include "foundation/base/env.h"

namespace mortise {

// What a link at `path` points to, else the path itself. Nothing where it is to be written directly, being no regular
// file (a pipe, a terminal; a folder, which then is an error): renaming would put a file in the place of /dev/null.
Result<std::optional<Path>> rename_target(Env& env, const Path& path);

}  // namespace mortise
