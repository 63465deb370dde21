// A team of threads that runs one job at a time, on all members at once, with barriers inside the job. A decode step
// takes tens of microseconds; a queue or a parallel region per operation would cost more than the work.
//
// A waiting member spins for some microseconds, then sleeps: another process may need its core, or the member that it
// waits for. The caller of run() is member 0. The team never calls libtorch, whose own threads sleep meanwhile. Cost: a
// barrier takes about 0.3 us if all members have a core.
// Thread rule: run() from one thread at a time.
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
  explicit Team(int size);
  Team(const Team&) = delete;
  Team& operator=(const Team&) = delete;
  ~Team();

  [[nodiscard]] int size() const { return static_cast<int>(threads_.size()) + 1; }
  // job(member) on every member; returns when all are done. If a member throws, the others leave at their next join(),
  // and run() throws the first exception. The team can then run another job.
  void run(const std::function<void(int member)>& job);
  // Inside a job: returns when every member has called it as often. All members must take part.
  void join();
  // How many members are worth waking for so many multiply-adds: one below about 40 us of one core's work, where
  // barriers would cost more than they share.
  [[nodiscard]] int members_for(int64_t multiply_adds) const { return multiply_adds < 2'000'000 ? 1 : size(); }

 private:
  void work(int member);
  void run_job(int member);
  void give_up(std::exception_ptr reason);

  std::vector<std::thread> threads_;
  const std::function<void(int)>* job_ = nullptr;
  std::atomic<uint32_t> round_{0};
  std::atomic<uint32_t> running_{0};
  std::atomic<bool> stopping_{false};

  std::atomic<uint32_t> arrived_{0};  // at the barrier
  std::atomic<uint32_t> phase_{0};    // barriers passed
  std::atomic<bool> broken_{false};   // a member has thrown
  std::mutex mutex_;
  std::exception_ptr reason_;
};

}  // namespace mortise
