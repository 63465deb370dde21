// Doubling pauses, and counts of events within a time window.
#include "plugin/worker/retry_policy.h"

#include <algorithm>

#include "foundation/base/clock.h"

namespace mortise {

void BackOff::fail(int64_t now_ns) {
  if (num_failures_ == 0) since_ns_ = now_ns;
  int64_t pause_ms = first_ms_;
  for (int i = 0; i < num_failures_ && pause_ms < longest_ms_; ++i) pause_ms *= 2;
  ++num_failures_;
  next_ns_ = now_ns + std::min(pause_ms, longest_ms_) * kMsInNs;
}

int64_t BackOff::wait_ms(int64_t now_ns) const {
  return may_try(now_ns) ? 0 : (next_ns_ - now_ns + kMsInNs - 1) / kMsInNs;
}

int64_t BackOff::failing_ms(int64_t now_ns) const { return num_failures_ == 0 ? 0 : (now_ns - since_ns_) / kMsInNs; }

size_t EventWindow::add(int64_t now_ns) {
  times_ns_.push_back(now_ns);
  while (now_ns - times_ns_.front() > window_ms_ * kMsInNs) times_ns_.pop_front();
  return times_ns_.size();
}

}  // namespace mortise
