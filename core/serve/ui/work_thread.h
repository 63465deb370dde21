// One thread that does posted work in order: what takes longer than an HTTP thread may wait.
// Thread rule: post from any thread; stop from one. Work that is posted after stop() is dropped.
#pragma once

#include <condition_variable>
#include <cstddef>
#include <deque>
#include <exception>
#include <functional>
#include <mutex>
#include <string>
#include <thread>
#include <utility>

namespace mortise {

class WorkThread {
 public:
  static constexpr size_t kMostPosted = 64;  // what waits, without the work that runs

  WorkThread() : thread_([this] { run(); }) {}
  WorkThread(const WorkThread&) = delete;
  WorkThread& operator=(const WorkThread&) = delete;
  ~WorkThread() { stop(); }

  // `fail` is told the text of an exception of the work. False: too much work waits, and this work was not taken.
  [[nodiscard]] bool post(std::function<void()> work, std::function<void(const std::string&)> fail) {
    {
      const std::lock_guard lock(mutex_);
      if (is_stopped_) return true;
      if (posted_.size() >= kMostPosted) return false;
      posted_.push_back({std::move(work), std::move(fail)});
    }
    wake_.notify_one();
    return true;
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
  struct Work {
    std::function<void()> run;
    std::function<void(const std::string&)> fail;
  };
  void run() {
    std::unique_lock lock(mutex_);
    while (true) {
      wake_.wait(lock, [this] { return is_stopped_ || !posted_.empty(); });
      if (is_stopped_) return;
      Work work = std::move(posted_.front());
      posted_.pop_front();
      lock.unlock();
      try {
        work.run();
      } catch (const std::exception& error) {  // one request must not end the program
        work.fail(error.what());
      }
      work = {};
      lock.lock();
    }
  }

  std::mutex mutex_;
  std::condition_variable wake_;
  std::deque<Work> posted_;
  bool is_stopped_ = false;
  std::thread thread_;
};

}  // namespace mortise
