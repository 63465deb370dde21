// What the benchmarks measure with: the clock, and the memory that a pass takes.
#pragma once

#include <chrono>
#include <fstream>

namespace mortise {

inline double clock_seconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

// The process's peak memory (VmHWM) begins again at what it holds now. False: the system does not let it.
inline bool reset_peak_memory() {
  std::ofstream out("/proc/self/clear_refs");
  out << "5";
  out.flush();
  return out.good();
}

}  // namespace mortise
