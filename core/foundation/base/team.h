// A team of threads that runs one job at a time, on all members at once, with barriers inside the job; or independent
// tasks, which members take one by one. A decode step takes tens of microseconds; a queue or a parallel region per
// operation would cost more than the work.
//
// A waiting member spins for some microseconds, then sleeps: another process may need its core, or the member that it
// waits for. Linux lets a caller and its helper share a core while another program keeps the other core to itself. With
// Placement::kOwn the caller of run_tasks() therefore keeps helpers off its core. If a helper that has begun a task then
// loses its core to that program, the caller gives it its own core, to one helper at a time. The caller of run() is
// member 0. The team never calls libtorch, whose own threads sleep meanwhile. Cost: a barrier takes about 0.3 us if all
// members have a core.
// Thread rule: run() and run_tasks() from one thread at a time.
#pragma once

#include <atomic>
#include <cstdint>
#include <exception>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

namespace mortise {

class Team {
 public:
  // Whether run_tasks() chooses where helpers run. That pays for tasks that are many and short.
  enum class Placement { kKernel, kOwn };
  explicit Team(int size, Placement placement = Placement::kKernel);
  Team(const Team&) = delete;
  Team& operator=(const Team&) = delete;
  ~Team();

  [[nodiscard]] int size() const { return static_cast<int>(helpers_.size()) + 1; }
  // job(member) on every member; returns when all are done. If a member throws, the others leave at their next join(),
  // and run() throws the first exception. The team can then run another job.
  void run(const std::function<void(int member)>& job);
  // Inside a job: returns when every member has called it as often. All members must take part.
  void join();
  // task(member, i) for each i of [0, count), in order, each on the next member that is free. The caller takes tasks too.
  // It waits only for tasks that another member has begun, never for a member that sleeps or has no core. A task must
  // write to its own memory or its member's; it must not call run(), run_tasks() or join(). If a task throws, tasks that
  // nobody has begun are left out, and run_tasks() throws the first exception.
  void run_tasks(int64_t count, const std::function<void(int member, int64_t i)>& task);
  // How many members are worth waking for so many multiply-adds: one below about 40 us of one core's work, where
  // barriers would cost more than they share.
  [[nodiscard]] int members_for(int64_t multiply_adds) const { return multiply_adds < 2'000'000 ? 1 : size(); }

 private:
  struct Helper {
    std::thread thread;
    std::atomic<int> id{0};    // the kernel names the thread so
    std::atomic<int> cpu{-1};  // where it began its last job
    std::atomic<bool> is_busy{false};
    int kept_off = -1;       // the processor that the caller keeps it off
    bool was_taken = false;  // to the caller's processor
    int64_t spent_ns = 0;    // processor time, when the caller last looked
  };

  void work(int member, Helper& helper);
  void wake_helpers(int64_t count);
  void run_job(int member);
  void take_tasks(int member, uint32_t round);
  void finish_task();
  void wait_for_tasks();
  void sleep_until_done(uint32_t open, double us);
  void keep_helpers_off_this_cpu();
  void let_helpers_run_anywhere();
  void take_a_helper_here();
  void keep_reason(std::exception_ptr reason);
  void give_up(std::exception_ptr reason);
  void rethrow();

  const Placement placement_;
  std::vector<Helper> helpers_;
  const std::function<void(int)>* job_ = nullptr;
  std::atomic<uint32_t> round_{0};  // odd: tasks, which a member may miss; even: a job for all members
  std::atomic<uint32_t> running_{0};
  std::atomic<bool> stopping_{false};

  std::atomic<uint32_t> arrived_{0};  // at the barrier
  std::atomic<uint32_t> phase_{0};    // barriers passed
  std::atomic<bool> broken_{false};   // a member has thrown

  const std::function<void(int, int64_t)>* task_ = nullptr;
  uint32_t num_tasks_ = 0;
  // The round of the tasks in the high half, and in the low half how many of them nobody has begun.
  std::atomic<uint64_t> tasks_left_{0};
  std::atomic<uint32_t> tasks_open_{0};  // not yet finished
  std::atomic<bool> caller_sleeps_{false};

  std::mutex mutex_;
  std::exception_ptr reason_;
};

}  // namespace mortise
