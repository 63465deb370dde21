// How much memory this process holds, from the kernel's own account. Zero where /proc cannot be read.
#pragma once

#include <cstdio>
#include <string_view>

namespace mortise {

// The value of a "VmXXX:  123 kB" line of /proc/self/status, in GiB.
[[nodiscard]] inline double process_status_gib(const char* field) {
  std::FILE* file = std::fopen("/proc/self/status", "re");
  if (file == nullptr) return 0.0;
  char line[256], name[64];
  double kib = 0.0, value = 0.0;
  while (std::fgets(line, sizeof line, file) != nullptr) {
    if (std::sscanf(line, "%63[^:]: %lf", name, &value) == 2 && std::string_view(name) == field) kib = value;
  }
  std::fclose(file);
  return kib / (1024.0 * 1024.0);
}

[[nodiscard]] inline double resident_memory_gib() { return process_status_gib("VmRSS"); }
[[nodiscard]] inline double peak_memory_gib() { return process_status_gib("VmHWM"); }

}  // namespace mortise
