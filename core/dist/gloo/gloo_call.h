// A collective that Gloo or a device works on, and the wait for it, which the watch ends if a rank fails. Private to
// gloo_communicator.cpp, because c10d's headers take seconds.
#pragma once

#include <torch/csrc/distributed/c10d/Work.hpp>

#include <atomic>
#include <chrono>
#include <exception>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <thread>
#include <utility>

#include "dist/communicator.h"
#include "dist/gloo/c10d_handle.h"
#include "dist/watch/rank_watch.h"

namespace mortise {

using Work = c10::intrusive_ptr<c10d::Work>;

inline bool has_ended(c10d::Work& work) {
  try {
    return work.isCompleted();
  } catch (const std::exception&) {
    return true;  // wait() looks for the exception
  }
}

// Finishes the completion when a device has done the work. A device tells nobody when it is done, so a thread looks.
class DeviceLook {
 public:
  DeviceLook(Work work, std::shared_ptr<Completion> completion)
      : thread_([this, work = std::move(work), completion = std::move(completion)] {
          while (!is_over_ && !has_ended(*work)) std::this_thread::sleep_for(std::chrono::microseconds(50));
          completion->finish();
        }) {}
  DeviceLook(const DeviceLook&) = delete;
  DeviceLook& operator=(const DeviceLook&) = delete;
  ~DeviceLook() {
    is_over_ = true;
    thread_.join();
  }

 private:
  std::atomic<bool> is_over_ = false;
  std::thread thread_;
};

// One call that Gloo's threads, or a device, work on.
class Call {
 public:
  Call(std::shared_ptr<RankWatch> watch, std::string_view stage, const RankSet& ranks, Work work, bool is_on_device)
      : watch_(std::move(watch)),
        stage_(stage),
        ranks_(ranks),
        work_(std::move(work)),
        completion_(watch_->new_completion()),
        is_on_device_(is_on_device) {
    if (is_on_device_) return;
    work_->getFuture()->addCallback([completion = completion_](c10::ivalue::Future&) { completion->finish(); });
  }
  // What this rank computes when the call is done.
  void then(std::function<void()> rest) { rest_ = std::move(rest); }
  [[nodiscard]] bool is_done() const { return done_ || has_ended(*work_); }
  Result<> wait(const Meanwhile& meanwhile = {}) {
    if (done_) return {};
    done_ = true;
    {
      std::optional<DeviceLook> look;
      if (is_on_device_) look.emplace(work_, completion_);
      TRY(watch_->wait(completion_, stage_, ranks_, meanwhile));
    }
    try {
      // A device's work is also complete when it has failed, and its wait() only orders streams: it throws nothing then.
      if (is_on_device_) throw_failure();
      work_->wait();
      if (is_on_device_) throw_failure();
      if (rest_) rest_();
    } catch (const std::exception& error) {
      return watch_->explain_failure(stage_, c10d_text(error));
    }
    return {};
  }

 private:
  void throw_failure() const {
    if (const std::exception_ptr failure = work_->exception()) std::rethrow_exception(failure);
  }

  std::shared_ptr<RankWatch> watch_;
  std::string stage_;
  RankSet ranks_;
  Work work_;
  std::shared_ptr<Completion> completion_;
  std::function<void()> rest_;
  bool is_on_device_;
  bool done_ = false;
};

class PendingCall : public PendingCollective {
 public:
  explicit PendingCall(Call call) : call_(std::move(call)) {}
  ~PendingCall() override { static_cast<void>(call_.wait()); }
  PendingCall(const PendingCall&) = delete;
  PendingCall& operator=(const PendingCall&) = delete;
  Result<> wait() override {
    const Result<> done = call_.wait();
    if (!done.ok()) failure_ = done.error();
    if (failure_) return *failure_;
    return {};
  }
  [[nodiscard]] bool is_done() const override { return call_.is_done(); }

 private:
  Call call_;
  std::optional<Error> failure_;
};

}  // namespace mortise
