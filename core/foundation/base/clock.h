// Durations: stopwatches and deadlines on the monotonic clock of an Env, and their text forms.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "foundation/base/env.h"
#include "foundation/base/result.h"

namespace mortise {

inline constexpr int64_t kMsInNs = 1'000'000;

class Stopwatch {
 public:
  explicit Stopwatch(Env& env = default_env()) : env_(&env), start_ns_(env.monotonic_ns()) {}
  void restart() { start_ns_ = env_->monotonic_ns(); }
  [[nodiscard]] int64_t elapsed_ns() const { return env_->monotonic_ns() - start_ns_; }
  [[nodiscard]] double elapsed_s() const { return static_cast<double>(elapsed_ns()) * 1e-9; }

 private:
  Env* env_;
  int64_t start_ns_;
};

// Adds the life of this object, in seconds, to a total.
class ScopedTimer {
 public:
  explicit ScopedTimer(double* total_s, Env& env = default_env()) : total_s_(total_s), watch_(env) {}
  ScopedTimer(const ScopedTimer&) = delete;
  ScopedTimer& operator=(const ScopedTimer&) = delete;
  ~ScopedTimer() { *total_s_ += watch_.elapsed_s(); }

 private:
  double* total_s_;
  Stopwatch watch_;
};

// "250ms", "10s", "1.5m", "2h", "1d", or several in falling order ("1h30m"). A bare number is refused (no unit), except
// 0. Result in nanoseconds; an Error of kind kConfig otherwise. Never negative.
Result<int64_t> parse_duration_ns(std::string_view text);

// For people: "0.42 s", "12.3 s", "2m05s", "3h12m", "4d07h".
std::string format_duration(double seconds);

// UTC, "2026-11-21T18:59:03Z".
std::string format_time_utc(int64_t wall_time_ns);

}  // namespace mortise
