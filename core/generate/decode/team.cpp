// See team.h.
#include "generate/decode/team.h"

#include <sched.h>

namespace mortise {
namespace {

constexpr int kSpins = 4000;  // about 40 us: longer than what a caller does between two jobs
constexpr int kBarrierSpins = 2000;

inline void pause() {
#ifdef __x86_64__
  __builtin_ia32_pause();
#endif
}

// Spins, then gives the core away each time: the others may need it to arrive.
template <class Done>
void spin_until(Done done) {
  for (int i = 0; !done(); ++i) {
    if (i < kBarrierSpins) {
      pause();
    } else {
      sched_yield();
    }
  }
}

}  // namespace

void SpinBarrier::wait(bool& sense) {
  if (size_ == 1) return;
  sense = !sense;
  if (arrived_.fetch_add(1, std::memory_order_acq_rel) == size_ - 1) {
    arrived_.store(0, std::memory_order_relaxed);
    sense_.store(sense, std::memory_order_release);
    return;
  }
  spin_until([&] { return sense_.load(std::memory_order_acquire) == sense; });
}

Team::Team(int size) {
  for (int member = 1; member < size; ++member) threads_.emplace_back([this, member] { work(member); });
}

Team::~Team() {
  stopping_.store(true, std::memory_order_relaxed);
  round_.fetch_add(1, std::memory_order_release);
  round_.notify_all();
  for (std::thread& thread : threads_) thread.join();
}

void Team::run(const std::function<void(int)>& job) {
  if (threads_.empty()) {
    job(0);
    return;
  }
  job_ = &job;
  running_.store(static_cast<int>(threads_.size()), std::memory_order_relaxed);
  round_.fetch_add(1, std::memory_order_release);
  round_.notify_all();
  job(0);
  spin_until([&] { return running_.load(std::memory_order_acquire) == 0; });
}

void Team::work(int member) {
  uint32_t seen = 0;
  while (true) {
    for (int i = 0; i < kSpins && round_.load(std::memory_order_acquire) == seen; ++i) pause();
    round_.wait(seen, std::memory_order_acquire);
    ++seen;
    if (stopping_.load(std::memory_order_relaxed)) return;
    (*job_)(member);
    running_.fetch_sub(1, std::memory_order_release);
  }
}

}  // namespace mortise
