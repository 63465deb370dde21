// Where a file that is to appear whole goes: written beside the place, then renamed to it.
#pragma once

#include <functional>
#include <optional>
#include <string_view>

#include "foundation/base/env.h"

namespace mortise {

// What a link at `path` points to, else the path itself. Nothing where it is to be written directly, being no regular
// file (a pipe, a terminal; a folder, which then is an error): renaming would put a file in the place of /dev/null.
Result<std::optional<Path>> rename_target(Env& env, const Path& path);

// A new name beside `target`, for what is renamed to it once whole. What killed processes leave has such names.
Path temporary_beside(Env& env, const Path& target);
bool is_temporary_name(std::string_view file_name);

// The folder that holds `path`; "." for a bare name.
Path folder_of(const Path& path);

// create_dirs, and every name that it made is on the disk.
Result<> create_dirs_synced(Env& env, const Path& path);

// target = what `write` writes, by a temporary file, fsync, rename, fsync of the folder: whole, or as it was. A link at
// `target` is replaced; to follow it, ask rename_target first.
Result<> write_whole(Env& env, const Path& target, const std::function<Result<>(WritableFile&)>& write);

}  // namespace mortise
