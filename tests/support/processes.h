// Whether other processes still run. A process ends some time after its SIGKILL, so a test waits for the end.
#pragma once

#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

namespace mortise::test {

// A zombie does not run: it waits for its parent, or for the machine's first process.
inline bool lives(pid_t pid) {
  std::ifstream file(std::filesystem::path("/proc") / std::to_string(pid) / "stat");
  std::string stat;
  std::getline(file, stat);
  const size_t end = stat.rfind(')');
  return end != std::string::npos && stat.substr(end, 3) != ") Z" && stat.substr(end, 3) != ") X";
}

// Looks every 10 ms whether `is_so` has come true; false if it has not after two minutes.
template <class Condition>
bool comes_true(const Condition& is_so) {
  for (int i = 0; i < 12'000; ++i) {
    if (is_so()) return true;
    ::usleep(10'000);
  }
  return is_so();
}

inline bool all_end(const std::vector<pid_t>& pids) {
  return comes_true([&] { return std::none_of(pids.begin(), pids.end(), lives); });
}

}  // namespace mortise::test
