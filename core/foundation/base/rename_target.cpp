// See rename_target.h.
#include "foundation/base/rename_target.h"

namespace mortise {

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

}  // namespace mortise
