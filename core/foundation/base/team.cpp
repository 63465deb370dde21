// See team.h.
#include "foundation/base/team.h"

#include <algorithm>
#include <chrono>
#include <utility>

namespace mortise {
namespace {

constexpr double kJobSpin_us = 40;      // longer than a caller needs between two jobs
constexpr double kBarrierSpin_us = 20;  // members have equal shares: longer than they differ on an idle machine

inline void pause() {
#ifdef __x86_64__
  __builtin_ia32_pause();
#endif
}

// Number of pauses that take this long. The cost of a pause differs by 15 times between processors.
int spins_for(double us) {
  static const double pause_us = [] {
    constexpr int kCount = 1000;
    const auto start = std::chrono::steady_clock::now();
    for (int i = 0; i < kCount; ++i) pause();
    const double all = std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now() - start).count();
    return std::max(all / kCount, 0.002);
  }();
  return static_cast<int>(us / pause_us);
}

// Waits until `word` is no longer `value`. The thread that changes it calls notify_all.
void wait_while(const std::atomic<uint32_t>& word, uint32_t value, int spins) {
  for (int i = 0; i < spins; ++i) {
    if (word.load(std::memory_order_acquire) != value) return;
    pause();
  }
  word.wait(value, std::memory_order_acquire);
}

struct OtherMemberThrew {};

uint64_t tasks_of(uint32_t round, uint32_t left) { return (uint64_t{round} << 32) | left; }

}  // namespace

Team::Team(int size) {
  spins_for(1);  // measured now, not in the first job
  for (int member = 1; member < size; ++member) threads_.emplace_back([this, member] { work(member); });
}

Team::~Team() {
  stopping_.store(true, std::memory_order_relaxed);
  round_.fetch_add(2, std::memory_order_release);
  round_.notify_all();
  for (std::thread& thread : threads_) thread.join();
}

void Team::join() {
  if (threads_.empty()) return;
  // Only a member that throws changes the phase before this one arrives. It says so in `broken_` first.
  const uint32_t phase = phase_.load(std::memory_order_acquire);
  if (broken_.load(std::memory_order_acquire)) throw OtherMemberThrew();
  if (arrived_.fetch_add(1, std::memory_order_acq_rel) == threads_.size()) {
    arrived_.store(0, std::memory_order_relaxed);
    phase_.fetch_add(1, std::memory_order_release);
    phase_.notify_all();
  } else {
    wait_while(phase_, phase, spins_for(kBarrierSpin_us));
  }
  if (broken_.load(std::memory_order_acquire)) throw OtherMemberThrew();
}

void Team::keep_reason(std::exception_ptr reason) {
  const std::lock_guard lock(mutex_);
  if (!reason_) reason_ = std::move(reason);
}

// A member that has thrown will not reach a barrier, so waiting members must leave.
void Team::give_up(std::exception_ptr reason) {
  keep_reason(std::move(reason));
  broken_.store(true, std::memory_order_release);
  phase_.fetch_add(1, std::memory_order_release);
  phase_.notify_all();
}

void Team::run_job(int member) {
  try {
    (*job_)(member);
  } catch (const OtherMemberThrew&) {
  } catch (...) {
    give_up(std::current_exception());
  }
}

void Team::rethrow() {
  arrived_.store(0, std::memory_order_relaxed);
  broken_.store(false, std::memory_order_relaxed);
  std::rethrow_exception(std::exchange(reason_, nullptr));
}

void Team::run(const std::function<void(int)>& job) {
  if (threads_.empty()) {
    job(0);
    return;
  }
  caller_cpu_.set();
  job_ = &job;
  running_.store(static_cast<uint32_t>(threads_.size()), std::memory_order_relaxed);
  round_.store((round_.load(std::memory_order_relaxed) | 1) + 1, std::memory_order_release);
  round_.notify_all();
  run_job(0);
  const int spins = spins_for(kBarrierSpin_us);
  for (uint32_t left = running_.load(std::memory_order_acquire); left > 0;
       left = running_.load(std::memory_order_acquire)) {
    wait_while(running_, left, spins);
  }
  if (broken_.load(std::memory_order_relaxed)) rethrow();
}

// A member may come late, when the tasks of this round are done and those of another are under way, or the caller has
// left. It finds another round or no task in `tasks_left_`, and touches nothing else.
void Team::take_tasks(int member, uint32_t round) {
  uint64_t left = tasks_left_.load(std::memory_order_acquire);
  while (static_cast<uint32_t>(left >> 32) == round && static_cast<uint32_t>(left) > 0) {
    if (!tasks_left_.compare_exchange_weak(left, left - 1, std::memory_order_acq_rel, std::memory_order_acquire)) continue;
    // From here to the count below the caller waits, so the task's function exists.
    try {
      if (!broken_.load(std::memory_order_relaxed)) (*task_)(member, num_tasks_ - static_cast<uint32_t>(left));
    } catch (...) {
      keep_reason(std::current_exception());
      broken_.store(true, std::memory_order_relaxed);
    }
    if (tasks_open_.fetch_sub(1, std::memory_order_acq_rel) == 1) tasks_open_.notify_all();
    left = tasks_left_.load(std::memory_order_acquire);
  }
}

void Team::run_tasks(int64_t count, const std::function<void(int, int64_t)>& task) {
  if (threads_.empty() || count <= 1) {
    for (int64_t i = 0; i < count; ++i) task(0, i);
    return;
  }
  caller_cpu_.set();
  task_ = &task;
  num_tasks_ = static_cast<uint32_t>(count);
  const uint32_t round = (round_.load(std::memory_order_relaxed) + 1) | 1;
  tasks_open_.store(num_tasks_, std::memory_order_relaxed);
  tasks_left_.store(tasks_of(round, num_tasks_), std::memory_order_release);
  round_.store(round, std::memory_order_release);
  round_.notify_all();
  take_tasks(0, round);
  const int spins = spins_for(kBarrierSpin_us);
  for (uint32_t open = tasks_open_.load(std::memory_order_acquire); open > 0;
       open = tasks_open_.load(std::memory_order_acquire)) {
    wait_while(tasks_open_, open, spins);
  }
  if (broken_.load(std::memory_order_relaxed)) rethrow();
}

void Team::work(int member) {
  uint32_t seen = 0;
  while (true) {
    wait_while(round_, seen, spins_for(kJobSpin_us));
    seen = round_.load(std::memory_order_acquire);
    if (stopping_.load(std::memory_order_relaxed)) return;
    caller_cpu_.leave();
    if (seen % 2 == 1) {
      take_tasks(member, seen);
      continue;
    }
    run_job(member);
    if (running_.fetch_sub(1, std::memory_order_release) == 1) running_.notify_all();
  }
}

}  // namespace mortise
