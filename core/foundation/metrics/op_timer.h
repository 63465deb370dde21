// Tells a listener where the time of a step goes: stages, and the kinds of operations inside them. `./dev bench step`
// listens; without a listener a timer costs one load and two branches. Timers nest; the listener subtracts the inner ones.
// Thread rule: any thread may have timers. A listener is told on the thread of the timer.
#pragma once

#include <atomic>
#include <type_traits>

namespace mortise {

class OpListener {
 public:
  virtual ~OpListener() = default;
  // Calls come in pairs, as timers nest. `name` is a literal.
  virtual void begins(const char* name) = 0;
  // The arithmetic and the bytes that the operation needs at least, by its shapes: every input read and every output
  // written once.
  virtual void ends(double flops, double bytes) = 0;
};

// What an operation needs at least.
struct OpWork {
  double flops = 0, bytes = 0;
};

inline std::atomic<OpListener*> op_listener = nullptr;  // set before the threads that have timers start

class OpTimer {
 public:
  explicit OpTimer(const char* name, double flops = 0, double bytes = 0)
      : listener_(op_listener.load(std::memory_order_relaxed)), flops_(flops), bytes_(bytes) {
    if (listener_ != nullptr) listener_->begins(name);
  }
  // `work` gives an OpWork. Nobody calls it without a listener: for work that takes a loop to count.
  template <class Work>
  requires std::is_invocable_r_v<OpWork, Work> OpTimer(const char* name, const Work& work)
      : listener_(op_listener.load(std::memory_order_relaxed)) {
    if (listener_ == nullptr) return;
    const OpWork needed = work();
    flops_ = needed.flops;
    bytes_ = needed.bytes;
    listener_->begins(name);
  }
  OpTimer(const OpTimer&) = delete;
  OpTimer& operator=(const OpTimer&) = delete;
  ~OpTimer() {
    if (listener_ != nullptr) listener_->ends(flops_, bytes_);
  }

 private:
  OpListener* listener_;
  double flops_ = 0, bytes_ = 0;
};

}  // namespace mortise
