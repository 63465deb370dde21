// A fixed pool of threads with a bounded queue, for the rooms without libtorch (rewards, parsing). libtorch rooms use
// at::parallel_for. Tasks must not throw.
//
// Thread rule: every method from any thread, also from inside a task, except the destructor and wait_idle() (which
// would wait for their own task). The destructor runs the queued tasks, then joins.
#pragma once

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

namespace mortise {

class ThreadPool {
 public:
  // num_threads <= 0: pool_threads() (cpus.h). Precondition: queue_capacity > 0.
  explicit ThreadPool(int num_threads, size_t queue_capacity = 1024);
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;
  ~ThreadPool();

  [[nodiscard]] int num_threads() const { return static_cast<int>(threads_.size()); }

  // Queues a task; waits while the queue is full (back-pressure). Inside a task of this pool a full queue runs the task
  // at once instead, since waiting there could wait for itself.
  void submit(std::function<void()> task);
  // Queues a task if there is room; returns whether it did.
  bool try_submit(std::function<void()> task);
  // Until nothing is queued or running.
  void wait_idle();

  // body(first, last) over pieces of [begin, end) of at least `grain` elements (the last may be smaller), in any order,
  // on the pool and on the calling thread. Returns when all are done. The pieces depend on begin, end and grain only,
  // never on the number of threads. May be nested.
  void parallel_for(int64_t begin, int64_t end, int64_t grain, const std::function<void(int64_t, int64_t)>& body);

 private:
  void work();

  std::mutex mutex_;
  std::condition_variable has_work_;
  std::condition_variable has_room_;
  std::condition_variable idle_;
  std::deque<std::function<void()>> queue_;
  size_t capacity_;
  int num_running_ = 0;
  bool stopping_ = false;
  std::vector<std::thread> threads_;
};

}  // namespace mortise
