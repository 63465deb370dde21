// See team.h.
#include "foundation/base/team.h"

#include <linux/futex.h>
#include <pthread.h>
#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <ctime>
#include <utility>

namespace mortise {
namespace {

constexpr double kJobSpin_us = 40;      // longer than a caller needs between two jobs
constexpr double kBarrierSpin_us = 20;  // members have equal shares: longer than they differ on an idle machine
// How long a caller without tasks waits until it looks for a helper without a processor: at first, and then twice as long
// each time, up to the most. A helper that computes is left alone, so a look at it costs two system calls.
constexpr double kFirstPatience_us = 60, kMostPatience_us = 2000;

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

// Where the calling thread may run; false if the kernel does not tell it (more than 1024 processors).
bool own_affinity(cpu_set_t& set) { return sched_getaffinity(0, sizeof(set), &set) == 0; }

// `id` is 0 until the thread has told it, and the kernel would take that for the caller.
void move_thread(int id, const cpu_set_t& set) {
  if (id > 0) sched_setaffinity(id, sizeof(set), &set);
}

// Processor time that the thread has used; 0 if the kernel does not tell it.
int64_t processor_ns(std::thread& thread) {
  clockid_t clock{};
  timespec spent{};
  if (pthread_getcpuclockid(thread.native_handle(), &clock) == 0) clock_gettime(clock, &spent);
  return spent.tv_sec * 1'000'000'000 + spent.tv_nsec;
}

double now_us() {
  return std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

struct OtherMemberThrew {};

uint64_t tasks_of(uint32_t round, uint32_t left) { return (uint64_t{round} << 32) | left; }

}  // namespace

Team::Team(int size, Placement placement)
    : placement_(placement), helpers_(static_cast<size_t>(std::max(1, size) - 1)) {
  spins_for(1);  // measured now, not in the first job
  for (size_t i = 0; i < helpers_.size(); ++i)
    helpers_[i].thread = std::thread([this, i] { work(static_cast<int>(i) + 1, helpers_[i]); });
}

Team::~Team() {
  stopping_.store(true, std::memory_order_relaxed);
  round_.fetch_add(2, std::memory_order_release);
  round_.notify_all();
  for (Helper& helper : helpers_) helper.thread.join();
}

// Both are called while helpers sleep or spin, so they move no work.
void Team::keep_helpers_off_this_cpu() {
  const int cpu = sched_getcpu();
  for (Helper& helper : helpers_) {
    const bool shares = helper.cpu.load(std::memory_order_relaxed) == cpu && helper.kept_off != cpu;
    if (!helper.was_taken && !shares) continue;
    cpu_set_t set;
    if (!own_affinity(set)) return;
    CPU_CLR(cpu, &set);
    if (CPU_COUNT(&set) == 0) return;
    move_thread(helper.id.load(std::memory_order_relaxed), set);
    helper.kept_off = cpu;
    helper.was_taken = false;
  }
}

void Team::let_helpers_run_anywhere() {
  for (Helper& helper : helpers_) {
    if (helper.kept_off < 0 && !helper.was_taken) continue;
    cpu_set_t set;
    if (!own_affinity(set)) return;
    move_thread(helper.id.load(std::memory_order_relaxed), set);
    helper.kept_off = -1;
    helper.was_taken = false;
  }
}

// A helper that has begun a task and has computed nothing since the last look has no processor: another program runs
// there. The caller has nothing to do, so it gives the helper its own processor. That serves one helper at a time.
void Team::take_a_helper_here() {
  Helper* waiting = nullptr;
  for (Helper& helper : helpers_) {
    if (!helper.is_busy.load(std::memory_order_relaxed)) continue;
    if (helper.was_taken) return;
    const int64_t spent_ns = processor_ns(helper.thread);
    if (spent_ns == helper.spent_ns && waiting == nullptr) waiting = &helper;
    helper.spent_ns = spent_ns;
  }
  if (waiting == nullptr) return;
  waiting->was_taken = true;
  waiting->kept_off = -1;
  cpu_set_t set;
  CPU_ZERO(&set);
  CPU_SET(sched_getcpu(), &set);
  move_thread(waiting->id.load(std::memory_order_relaxed), set);
}

// Sleeps until no task is open, at most `us` if that is positive.
void Team::sleep_until_done(uint32_t open, double us) {
  const auto ns = static_cast<int64_t>(us * 1000);
  const timespec limit{ns / 1'000'000'000, ns % 1'000'000'000};
  caller_sleeps_.store(true, std::memory_order_seq_cst);
  if (tasks_open_.load(std::memory_order_seq_cst) == open)
    ::syscall(SYS_futex, &tasks_open_, FUTEX_WAIT_PRIVATE, open, us > 0 ? &limit : nullptr, nullptr, 0);
  caller_sleeps_.store(false, std::memory_order_relaxed);
}

void Team::wait_for_tasks() {
  for (int spins = spins_for(kBarrierSpin_us); spins > 0; --spins) {
    if (tasks_open_.load(std::memory_order_acquire) == 0) return;
    pause();
  }
  const bool can_take = placement_ == Placement::kOwn;
  if (can_take) {
    for (Helper& helper : helpers_) helper.spent_ns = processor_ns(helper.thread);
  }
  double patience_us = kFirstPatience_us;
  double since_us = now_us();
  for (uint32_t open = tasks_open_.load(std::memory_order_acquire); open > 0;
       open = tasks_open_.load(std::memory_order_acquire)) {
    const double left_us = since_us + patience_us - now_us();
    if (can_take && left_us <= 0) {
      take_a_helper_here();
      since_us = now_us();
      patience_us = std::min(2 * patience_us, kMostPatience_us);
      continue;
    }
    sleep_until_done(open, can_take ? left_us : 0);
  }
}

void Team::finish_task() {
  if (tasks_open_.fetch_sub(1, std::memory_order_seq_cst) != 1) return;
  if (caller_sleeps_.load(std::memory_order_seq_cst))
    ::syscall(SYS_futex, &tasks_open_, FUTEX_WAKE_PRIVATE, 1, nullptr, nullptr, 0);
}

void Team::join() {
  if (helpers_.empty()) return;
  // Only a member that throws changes the phase before this one arrives. It says so in `broken_` first.
  const uint32_t phase = phase_.load(std::memory_order_acquire);
  if (broken_.load(std::memory_order_acquire)) throw OtherMemberThrew();
  if (arrived_.fetch_add(1, std::memory_order_acq_rel) == helpers_.size()) {
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
  if (helpers_.empty()) {
    job(0);
    return;
  }
  let_helpers_run_anywhere();  // a job with barriers waits for all, so the kernel's own choice is the better one
  job_ = &job;
  running_.store(static_cast<uint32_t>(helpers_.size()), std::memory_order_relaxed);
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

// Waking a thread costs the caller a microsecond or more, so a few tasks wake a few helpers.
void Team::wake_helpers(int64_t count) {
  if (count >= static_cast<int64_t>(helpers_.size())) return round_.notify_all();
  for (int64_t i = 0; i < count; ++i) round_.notify_one();
}

// A member may come late, when the tasks of this round are done and those of another are under way, or the caller has
// left. It finds another round or no task in `tasks_left_`, and touches nothing else.
void Team::take_tasks(int member, uint32_t round) {
  uint64_t left = tasks_left_.load(std::memory_order_acquire);
  while (static_cast<uint32_t>(left >> 32) == round && static_cast<uint32_t>(left) > 0) {
    if (!tasks_left_.compare_exchange_weak(left, left - 1, std::memory_order_acq_rel, std::memory_order_acquire))
      continue;
    // From here until finish_task() the caller waits, so the task's function exists.
    try {
      if (!broken_.load(std::memory_order_relaxed)) (*task_)(member, num_tasks_ - static_cast<uint32_t>(left));
    } catch (...) {
      keep_reason(std::current_exception());
      broken_.store(true, std::memory_order_relaxed);
    }
    finish_task();
    left = tasks_left_.load(std::memory_order_acquire);
  }
}

void Team::run_tasks(int64_t count, const std::function<void(int, int64_t)>& task) {
  if (helpers_.empty() || count <= 1) {
    for (int64_t i = 0; i < count; ++i) task(0, i);
    return;
  }
  if (placement_ == Placement::kOwn) keep_helpers_off_this_cpu();
  task_ = &task;
  num_tasks_ = static_cast<uint32_t>(count);
  const uint32_t round = (round_.load(std::memory_order_relaxed) + 1) | 1;
  tasks_open_.store(num_tasks_, std::memory_order_relaxed);
  tasks_left_.store(tasks_of(round, num_tasks_), std::memory_order_release);
  round_.store(round, std::memory_order_release);
  wake_helpers(count - 1);
  take_tasks(0, round);
  wait_for_tasks();
  if (broken_.load(std::memory_order_relaxed)) rethrow();
}

void Team::work(int member, Helper& helper) {
  helper.id.store(::gettid(), std::memory_order_relaxed);
  uint32_t seen = 0;
  while (true) {
    wait_while(round_, seen, spins_for(kJobSpin_us));
    seen = round_.load(std::memory_order_acquire);
    if (stopping_.load(std::memory_order_relaxed)) return;
    helper.cpu.store(sched_getcpu(), std::memory_order_relaxed);
    if (seen % 2 == 1) {
      helper.is_busy.store(true, std::memory_order_relaxed);
      take_tasks(member, seen);
      helper.is_busy.store(false, std::memory_order_relaxed);
      continue;
    }
    run_job(member);
    if (running_.fetch_sub(1, std::memory_order_release) == 1) running_.notify_all();
  }
}

}  // namespace mortise
