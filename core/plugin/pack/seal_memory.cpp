// See seal_memory.h.
#include "plugin/pack/seal_memory.h"

#include <fcntl.h>

#include <algorithm>
#include <cerrno>
#include <thread>

namespace mortise {

bool seal_memory(int fd, int seals, std::chrono::milliseconds time) {
  constexpr std::chrono::milliseconds kLongestPause{200};
  const auto end = std::chrono::steady_clock::now() + time;
  for (std::chrono::milliseconds pause{1};; pause = std::min(2 * pause, kLongestPause)) {
    if (::fcntl(fd, F_ADD_SEALS, seals) == 0) return true;
    if (errno != EBUSY || std::chrono::steady_clock::now() >= end) return false;
    std::this_thread::sleep_for(pause);
  }
}

}  // namespace mortise
