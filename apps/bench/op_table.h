// Collects what the timers of a run say (foundation/metrics/op_timer.h): for each stage of a step, and for each kind of
// operation in a stage, the least time that a step spent in it. The time of inner timers is not counted in outer ones.
// The time is the processor's, or the clock's: with more than one thread, that of the thread with the timers says little.
//
// On a busy machine, other programs slow down memory and shared caches, in another place of each step. The least time of
// many steps is therefore close to the time of the work alone. If steps differ in the calls of an operation (a
// micro-batch without a gradient has no backward pass), those with the most calls count.
//
// Thread rule: it listens to the thread that made it, and ignores the others.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "foundation/metrics/op_timer.h"

namespace mortise {

struct OpUse {
  double seconds = 0;  // the numbers are those of one step
  double flops = 0;
  double bytes = 0;
  int64_t calls = 0;
};

class OpTable final : public OpListener {
 public:
  enum class Time { kProcessor, kClock };
  // The first `num_warm_up` steps are not counted.
  OpTable(std::string step, int num_warm_up) : step_(std::move(step)), num_warm_up_(num_warm_up) {}
  // Before the first timer.
  void measure(Time time) { time_ = time; }
  void begins(const char* name) override;
  void ends(double flops, double bytes) override;

  // By (stage, operation); the stage's own time has the operation "".
  using Key = std::pair<std::string, std::string>;
  const std::map<Key, OpUse>& rows() const { return best_; }
  // The whole step, with its stages.
  double step_seconds() const { return best_step_; }
  int num_steps() const { return num_steps_; }

 private:
  struct Open {
    const char* name;
    double began;
    double inner;  // seconds of the timers inside
  };
  void end_step(double seconds);
  [[nodiscard]] double now() const;

  std::string step_;
  int num_warm_up_, num_steps_ = 0;
  Time time_ = Time::kProcessor;
  const std::thread::id thread_ = std::this_thread::get_id();
  std::vector<Open> open_;
  std::map<Key, OpUse> now_, best_;
  double best_step_ = 0;
};

}  // namespace mortise
