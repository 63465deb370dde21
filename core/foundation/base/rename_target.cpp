// See rename_target.h.
#include "foundation/base/rename_target.h"

#include <fmt/core.h>

#include <string>
#include <vector>

namespace mortise {

namespace {

constexpr std::string_view kPrefix = ".tmp_";

}  // namespace

Result<std::optional<Path>> rename_target(Env& env, const Path& path) {
  const std::string name = path.lexically_normal().string();
  const bool is_device = name.starts_with("/dev/") && !name.starts_with("/dev/shm/");
  if (is_device || name.starts_with("/proc/")) return std::optional<Path>();
  std::error_code ignored;
  const Path target =
      std::filesystem::is_symlink(path, ignored) ? std::filesystem::weakly_canonical(path, ignored) : path;
  if (!env.exists(target)) return std::optional(target);
  const FileInfo info = TRY(env.info(target));
  return info.is_file ? std::optional(target) : std::nullopt;
}

Path temporary_beside(Env& env, const Path& target) {
  return target.parent_path() / unique_name(env, fmt::format("{}{}.", kPrefix, target.filename().string()));
}

bool is_temporary_name(std::string_view file_name) { return file_name.starts_with(kPrefix); }

Path folder_of(const Path& path) { return path.has_parent_path() ? path.parent_path() : Path("."); }

Result<> create_dirs_synced(Env& env, const Path& path) {
  std::vector<Path> parents;  // the parents of folders that are missing
  for (Path at = path; !at.empty() && !env.exists(at) && at != at.parent_path(); at = at.parent_path())
    parents.push_back(folder_of(at));
  TRY(env.create_dirs(path));
  for (const Path& parent : parents) TRY(env.sync_dir(parent));
  return {};
}

Result<> write_whole(Env& env, const Path& target, const std::function<Result<>(WritableFile&)>& write) {
  const Path temporary = temporary_beside(env, target);
  const auto all = [&]() -> Result<> {
    const auto file = TRY(env.open_for_write(temporary, WriteMode::kExclusive));
    TRY(write(*file));
    TRY(file->sync());
    TRY(file->close());
    return env.rename(temporary, target);
  };
  Result<> written = all();
  if (!written.ok()) {
    (void)env.unlink(temporary);
    return written;
  }
  return env.sync_dir(folder_of(target));
}

}  // namespace mortise
