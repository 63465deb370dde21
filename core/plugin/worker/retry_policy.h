// When something that failed is tried again, and when it has failed too often. The caller says what time it is, so that
// these are the same in a run and in a simulation.
//
// Threading: plain values.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>

namespace mortise {

// Pauses that double from failure to failure: `first_ms`, 2 * first_ms, ... `longest_ms`.
class BackOff {
 public:
  BackOff(int64_t first_ms, int64_t longest_ms) : first_ms_(first_ms), longest_ms_(longest_ms) {}

  void fail(int64_t now_ns);
  void succeed() { num_failures_ = 0; }
  [[nodiscard]] int num_failures() const { return num_failures_; }  // since the last success
  [[nodiscard]] bool may_try(int64_t now_ns) const { return num_failures_ == 0 || now_ns >= next_ns_; }
  // 0: may_try().
  [[nodiscard]] int64_t wait_ms(int64_t now_ns) const;
  // Since the first of these failures; 0 after a success.
  [[nodiscard]] int64_t failing_ms(int64_t now_ns) const;

 private:
  int64_t first_ms_, longest_ms_;
  int num_failures_ = 0;
  int64_t since_ns_ = 0, next_ns_ = 0;
};

// Events within the last `window_ms`.
class EventWindow {
 public:
  explicit EventWindow(int64_t window_ms) : window_ms_(window_ms) {}

  // How many there are with this one.
  size_t add(int64_t now_ns);
  [[nodiscard]] int64_t window_ms() const { return window_ms_; }

 private:
  int64_t window_ms_;
  std::deque<int64_t> times_ns_;
};

}  // namespace mortise
