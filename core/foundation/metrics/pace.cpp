// See pace.h.
#include "foundation/metrics/pace.h"

namespace mortise {
namespace {

constexpr int64_t kWindow_ns = 60'000'000'000;
constexpr int64_t kApart_ns = 1'000'000'000;  // bounds the number of marks, however short the steps are

}  // namespace

void Pace::add(int64_t step, int64_t now_ns) {
  if (step <= (last_ ? last_->step : marks_.front().step)) return;
  // The mark before this step begins its time: it is kept if it is far enough from the one before.
  if (last_ && last_->time_ns - marks_.back().time_ns >= kApart_ns) marks_.push_back(*last_);
  last_ = {step, now_ns};
  while (marks_.size() > 1 && now_ns - marks_[1].time_ns >= kWindow_ns) marks_.pop_front();
}

std::optional<double> Pace::seconds_per_step() const {
  if (!last_) return std::nullopt;
  const Mark& from = marks_.front();
  return static_cast<double>(last_->time_ns - from.time_ns) * 1e-9 / static_cast<double>(last_->step - from.step);
}

}  // namespace mortise
