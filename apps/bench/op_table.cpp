// See op_table.h.
#include "op_table.h"

#include <time.h>

#include <algorithm>

namespace mortise {

double OpTable::now() const {
  timespec now{};
  clock_gettime(time_ == Time::kProcessor ? CLOCK_THREAD_CPUTIME_ID : CLOCK_MONOTONIC, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

void OpTable::begins(const char* name) {
  if (std::this_thread::get_id() != thread_) return;
  open_.push_back({name, now(), 0.0});
}

void OpTable::ends(double flops, double bytes) {
  if (std::this_thread::get_id() != thread_) return;
  const Open done = open_.back();
  open_.pop_back();
  const double seconds = now() - done.began;
  // The outermost timer is the step, those in it are stages, and all deeper ones are operations of their stage.
  const std::string stage = open_.empty() ? "" : open_.size() == 1 ? done.name : open_[1].name;
  OpUse& use = now_[{stage, open_.size() > 1 ? done.name : ""}];
  use.seconds += seconds - done.inner;
  use.flops += flops;
  use.bytes += bytes;
  ++use.calls;
  if (!open_.empty()) {
    open_.back().inner += seconds;
  } else if (done.name == step_) {
    end_step(seconds);
  } else {
    now_.clear();  // not part of a step
  }
}

void OpTable::end_step(double seconds) {
  if (++num_steps_ > num_warm_up_) {
    best_step_ = best_.empty() ? seconds : std::min(best_step_, seconds);
    for (const auto& [key, use] : now_) {
      const auto [at, added] = best_.try_emplace(key, use);
      const bool is_more_work = use.calls > at->second.calls;
      const bool is_as_much = use.calls == at->second.calls;
      if (!added && (is_more_work || (is_as_much && use.seconds < at->second.seconds))) at->second = use;
    }
  }
  now_.clear();
}

}  // namespace mortise
