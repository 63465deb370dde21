// Recognizes a pointer file of git-lfs by its first line.
#include "foundation/base/lfs_pointer.h"

namespace mortise {

Result<> refuse_lfs_pointer(Env& env, const Path& path) {
  constexpr uint64_t kLongestPointer = 1024;
  const uint64_t size_bytes = TRY(env.info(path)).size_bytes;
  if (size_bytes == 0 || size_bytes > kLongestPointer) return {};
  const Result<std::string> text = env.read_file(path, kLongestPointer);
  if (!text.ok() || !text->starts_with("version https://git-lfs")) return {};
  return Error{ErrorKind::kData, "this is a pointer of git-lfs, not the file itself", path.string(),
               "run `git lfs pull` in the folder, or download it again"};
}

}  // namespace mortise
