// The process state that a plugin must not change: signals, locale, folder, environment, umask, floating-point mode,
// descriptors, threads, children. Threading: one thread.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

namespace mortise::check {

struct ProcessState {
  std::array<std::string, 65> signals;  // action of each, and whether it is blocked
  std::string locale;
  std::string folder;
  std::vector<std::string> environment;  // sorted
  unsigned umask = 0;
  std::string floating_point;            // rounding, traps, flush to zero
  std::vector<std::string> descriptors;  // "7 -> /dev/null"
  int64_t num_threads = 0;
  bool has_children = false;

  static ProcessState now();
};

// "" or the first difference: "the action of signal 10 (User defined signal 1)".
[[nodiscard]] std::string signal_difference(const ProcessState& before, const ProcessState& after);
[[nodiscard]] std::string environment_difference(const ProcessState& before, const ProcessState& after);
[[nodiscard]] std::string descriptor_difference(const ProcessState& before, const ProcessState& after);
// Any of all.
[[nodiscard]] std::string difference(const ProcessState& before, const ProcessState& after);

// Threads of this process, after those that are ending have had half a second.
[[nodiscard]] int64_t settled_threads(int64_t expected);

}  // namespace mortise::check
