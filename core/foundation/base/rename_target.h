// The target of a file that must appear complete: it is written next to its place, then renamed to it.
#pragma once

#include <functional>
#include <optional>
#include <string_view>

#include "foundation/base/env.h"

namespace mortise {

// The target of a link at `path`, else the path itself. Nothing if the path is not a regular file (a pipe, a terminal;
// a folder, which is then an error) and must be written directly: renaming would replace /dev/null by a file.
Result<std::optional<Path>> rename_target(Env& env, const Path& path);

// A new name next to `target`, for a file that is renamed to it once complete. Killed processes leave files with such
// names.
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
