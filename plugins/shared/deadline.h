// The time that a call has, for plugins that wait on something outside the process.
#pragma once

#include <algorithm>
#include <ctime>

#include <mortise/cpp/plugin.hpp>

namespace mortise {

inline std::int64_t monotonic_ns() {
  timespec now{};
  clock_gettime(CLOCK_MONOTONIC, &now);
  return std::int64_t(now.tv_sec) * 1'000'000'000 + now.tv_nsec;
}

// When to stop waiting (CLOCK_MONOTONIC; 0: never). The host checks the time after the slot has returned, so a tenth of
// it, at most 200 ms, is kept to end what was waited for and to report.
inline std::int64_t waiting_deadline_ns(Call call) {
  const mortise_host* host = call.host();
  const std::int64_t deadline = MORTISE_HAS(host, deadline_ns) ? host->deadline_ns(call.raw()) : 0;
  if (deadline == 0) return 0;
  const std::int64_t time = std::max<std::int64_t>(deadline - monotonic_ns(), 0);
  return std::max<std::int64_t>(deadline - std::min<std::int64_t>(time / 10, 200'000'000), 1);
}

}  // namespace mortise
