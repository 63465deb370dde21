// Raises the limit on open files, and gives advice for errors of exhausted resources.
#include "foundation/base/open_files.h"

#include <fmt/core.h>
#include <sys/resource.h>

#include <algorithm>
#include <cerrno>

namespace mortise {

void raise_open_files_limit() {
  constexpr rlim_t kMost = 65'536;
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0) return;
  const rlim_t wanted = std::min(limit.rlim_max, kMost);
  if (limit.rlim_cur >= wanted) return;
  limit.rlim_cur = wanted;
  ::setrlimit(RLIMIT_NOFILE, &limit);  // refused: the run has what it had
}

std::string resource_advice(int code, const std::string& otherwise) {
  rlimit limit{};
  switch (code) {
    case EMFILE:
      if (::getrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY)
        return "raise the limit on open files (ulimit -n)";
      return fmt::format("raise the limit on open files (ulimit -n is {})", limit.rlim_cur);
    case ENFILE:
      return "the whole machine has too many files open: end other programs, or raise fs.file-max";
    case EAGAIN:
      return "raise the limit on processes (ulimit -u, or pids.max of the container), or end other programs";
    case ENOMEM:
      return "free memory, or lower plugins.num_workers";
    default:
      return otherwise;
  }
}

}  // namespace mortise
