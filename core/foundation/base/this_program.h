// The file of the running program. Its own parts lie next to it. Thread rule: any thread.
#pragma once

#include <filesystem>
#include <system_error>

namespace mortise {

// Empty where /proc is not mounted.
[[nodiscard]] inline std::filesystem::path this_program() {
  std::error_code failed;
  return std::filesystem::read_symlink("/proc/self/exe", failed);
}

}  // namespace mortise
