// How long a step takes now: the mean over the steps of the last minute, or the last step if that took longer. A run
// that became slower or faster soon shows its new pace.
#pragma once

#include <cstdint>
#include <deque>
#include <optional>

namespace mortise {

class Pace {
 public:
  // `first_step` steps were done before `now_ns` (a resume): they took no time of this process.
  Pace(int64_t first_step, int64_t now_ns) : marks_{{first_step, now_ns}} {}

  // Step `step` has just ended. A step that is not later than the last one is left out.
  void add(int64_t step, int64_t now_ns);
  // Nothing before the first step has ended.
  [[nodiscard]] std::optional<double> seconds_per_step() const;

 private:
  struct Mark {
    int64_t step;
    int64_t time_ns;
  };
  std::deque<Mark> marks_;  // about a second apart or more; the first is the only one older than the window
  std::optional<Mark> last_;
};

}  // namespace mortise
