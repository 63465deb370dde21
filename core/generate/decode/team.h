// A team of threads that runs one job at a time, all members at once, with barriers inside the job: what a decode step
// of tens of microseconds needs, where a queue or a parallel region per operation would cost more than the work.
//
// Members spin for some microseconds between jobs, then sleep. The caller of run() is member 0. The team never calls
// libtorch, whose own threads sleep meanwhile. Cost: a barrier is about 0.3 us when all members have a core.
// Thread rule: run() from one thread at a time.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <thread>
#include <vector>

namespace mortise {

// Joins the members of a job that share it; each passes its own `sense`, at first false.
class SpinBarrier {
 public:
  explicit SpinBarrier(int size) : size_(size) {}
  void wait(bool& sense);

 private:
  const int size_;
  std::atomic<int> arrived_{0};
  std::atomic<bool> sense_{false};
};

class Team {
 public:
  explicit Team(int size);
  Team(const Team&) = delete;
  Team& operator=(const Team&) = delete;
  ~Team();

  [[nodiscard]] int size() const { return static_cast<int>(threads_.size()) + 1; }
  // job(member) on every member; returns when all are done. The job must not throw.
  void run(const std::function<void(int member)>& job);
  // How many members are worth waking for so many multiply-adds: one below about 40 us of one core's work, where
  // barriers would cost more than they share.
  [[nodiscard]] int members_for(int64_t multiply_adds) const { return multiply_adds < 2'000'000 ? 1 : size(); }

 private:
  void work(int member);

  std::vector<std::thread> threads_;
  const std::function<void(int)>* job_ = nullptr;
  std::atomic<uint32_t> round_{0};
  std::atomic<int> running_{0};
  std::atomic<bool> stopping_{false};
};

}  // namespace mortise
