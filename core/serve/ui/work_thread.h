// One thread that does posted work in order: what takes longer than an HTTP thread may wait.
// Thread rule: post from any thread; stop from one. Work that is posted after stop() is dropped.
#pragma once

#include <condition_variable>
#include <deque>
#include <functional>
#include <mutex>
#include <thread>
#include <utility>

namespace mortise {

class WorkThread {
 public:
  WorkThread() : thread_([this] { run(); }) {}
  WorkThread(const WorkThread&) = delete;
  WorkThread& operator=(const WorkThread&) = delete;
  ~WorkThread() { stop(); }

  void post(std::function<void()> work) {
    {
      const std::lock_guard lock(mutex_);
      if (is_stopped_) return;
      posted_.push_back(std::move(work));
    }
    wake_.notify_one();
  }
  // Ends after the work that runs now; the rest is dropped.
  void stop() {
    {
      const std::lock_guard lock(mutex_);
      is_stopped_ = true;
    }
    wake_.notify_one();
    if (thread_.joinable()) thread_.join();
    posted_.clear();
  }

 private:
  void run() {
    std::unique_lock lock(mutex_);
    while (true) {
      wake_.wait(lock, [this] { return is_stopped_ || !posted_.empty(); });
      if (is_stopped_) return;
      auto work = std::move(posted_.front());
      posted_.pop_front();
      lock.unlock();
      work();
      work = nullptr;
      lock.lock();
    }
  }

  std::mutex mutex_;
  std::condition_variable wake_;
  std::deque<std::function<void()>> posted_;
  bool is_stopped_ = false;
  std::thread thread_;
};

}  // namespace mortise
