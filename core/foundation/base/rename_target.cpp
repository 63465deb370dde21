// See rename_target.h.
#include "foundation/base/rename_target.h"

#include <fmt/core.h>

#include <string>
#include <vector>

namespace mortise {

namespace {

constexpr std::string_view kPrefix = ".tmp_";
constexpr int kMaxLinks = 40;  // as the kernel follows

// The end of a chain of links, which need not exist.
Result<Path> end_of_links(const Path& path) {
  Path at = path;
  for (int i = 0; i < kMaxLinks; ++i) {
    std::error_code failed;
    if (!std::filesystem::is_symlink(at, failed)) {
      if (i == 0) return path;
      const Path real = std::filesystem::weakly_canonical(at, failed);
      return failed ? at : real;
    }
    const Path next = std::filesystem::read_symlink(at, failed);
    if (failed) return Error{ErrorKind::kDisk, "cannot be read as a link: " + failed.message(), at.string(), ""};
    at = at.parent_path() / next;  // an absolute `next` stands alone
  }
  return Error{ErrorKind::kDisk, "the link leads back to itself", path.string(), "remove it, or name another file"};
}

}  // namespace

Result<std::optional<Path>> rename_target(Env& env, const Path& path) {
  const std::string name = path.lexically_normal().string();
  const bool is_device = name.starts_with("/dev/") && !name.starts_with("/dev/shm/");
  if (is_device || name.starts_with("/proc/")) return std::optional<Path>();
  const Path target = TRY(end_of_links(path));
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
