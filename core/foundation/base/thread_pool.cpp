// See thread_pool.h.
#include "foundation/base/thread_pool.h"

#include <algorithm>
#include <atomic>
#include <memory>

#include "foundation/base/cpus.h"

namespace mortise {
namespace {

// The pool whose task this thread runs, so that submit() inside a task does not wait for itself.
thread_local const ThreadPool* g_current_pool = nullptr;

// Shared by the caller of parallel_for and its helpers. A helper that starts late finds no piece left, and never
// touches the body, which may no longer exist.
struct Loop {
  std::atomic<int64_t> next{0};
  int64_t num_pieces = 0;
  std::mutex mutex;
  std::condition_variable done;
  int64_t num_done = 0;
};

}  // namespace

ThreadPool::ThreadPool(int num_threads, size_t queue_capacity) : capacity_(queue_capacity) {
  if (num_threads <= 0) num_threads = pool_threads();
  threads_.reserve(static_cast<size_t>(num_threads));
  for (int i = 0; i < num_threads; ++i) threads_.emplace_back([this] { work(); });
}

ThreadPool::~ThreadPool() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  has_work_.notify_all();
  for (std::thread& thread : threads_) thread.join();
}

void ThreadPool::work() {
  g_current_pool = this;
  std::unique_lock lock(mutex_);
  while (true) {
    has_work_.wait(lock, [this] { return stopping_ || !queue_.empty(); });
    if (queue_.empty()) return;
    std::function<void()> task = std::move(queue_.front());
    queue_.pop_front();
    ++num_running_;
    lock.unlock();
    has_room_.notify_one();
    task();
    task = nullptr;  // what it holds is freed outside the lock
    lock.lock();
    if (--num_running_ == 0 && queue_.empty()) idle_.notify_all();
  }
}

bool ThreadPool::try_submit(std::function<void()> task) {
  {
    const std::lock_guard lock(mutex_);
    if (queue_.size() >= capacity_) return false;
    queue_.push_back(std::move(task));
  }
  has_work_.notify_one();
  return true;
}

void ThreadPool::submit(std::function<void()> task) {
  {
    std::unique_lock lock(mutex_);
    if (g_current_pool == this && queue_.size() >= capacity_) {
      lock.unlock();
      task();
      return;
    }
    has_room_.wait(lock, [this] { return queue_.size() < capacity_; });
    queue_.push_back(std::move(task));
  }
  has_work_.notify_one();
}

void ThreadPool::wait_idle() {
  std::unique_lock lock(mutex_);
  idle_.wait(lock, [this] { return queue_.empty() && num_running_ == 0; });
}

void ThreadPool::parallel_for(int64_t begin, int64_t end, int64_t grain,
                              const std::function<void(int64_t, int64_t)>& body) {
  if (begin >= end) return;
  grain = std::max<int64_t>(1, grain);
  const auto loop = std::make_shared<Loop>();
  loop->num_pieces = (end - begin - 1) / grain + 1;
  const auto run = [loop, begin, end, grain, &body] {
    for (int64_t i = loop->next.fetch_add(1); i < loop->num_pieces; i = loop->next.fetch_add(1)) {
      const int64_t first = begin + i * grain;
      body(first, end - first > grain ? first + grain : end);
      const std::lock_guard lock(loop->mutex);
      if (++loop->num_done == loop->num_pieces) loop->done.notify_all();
    }
  };
  const int64_t num_helpers = std::min<int64_t>(num_threads(), loop->num_pieces - 1);
  for (int64_t i = 0; i < num_helpers; ++i) {
    if (!try_submit(run)) break;
  }
  run();
  std::unique_lock lock(loop->mutex);
  loop->done.wait(lock, [&] { return loop->num_done == loop->num_pieces; });
}

}  // namespace mortise
