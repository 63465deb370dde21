// Where threads that stand for ranks meet and exchange bytes.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "foundation/base/result.h"

namespace mortise::test {

class MeetingPoint {
 public:
  explicit MeetingPoint(int size) : bytes_(static_cast<size_t>(size)) {}

  // Returns when all ranks have come with their bytes, or with the Error of one that has failed. `meanwhile` is called until
  // then, as long as it says that it has more to do.
  Result<std::vector<std::string>> meet(int rank, std::string bytes, const std::function<bool(int)>& meanwhile = {}) {
    std::unique_lock lock(mutex_);
    if (failed_) return *failed_;
    num_sent_ += bytes.size();
    bytes_[static_cast<size_t>(rank)] = std::move(bytes);
    const int64_t turn = turn_;
    if (++num_here_ == static_cast<int>(bytes_.size())) {
      shown_ = bytes_;
      num_here_ = 0;
      ++turn_;
      changed_.notify_all();
    }
    const auto is_over = [&] { return turn_ != turn || failed_; };
    for (bool goes_on = meanwhile != nullptr;
         goes_on && !changed_.wait_for(lock, std::chrono::milliseconds(1), is_over);) {
      lock.unlock();
      goes_on = meanwhile(1);
      lock.lock();
    }
    changed_.wait(lock, is_over);
    if (turn_ == turn) return *failed_;
    return shown_;
  }
  // A counter that the threads share; its value before.
  int64_t add(const std::string& counter, int64_t amount) {
    const std::lock_guard lock(mutex_);
    return std::exchange(counters_[counter], counters_[counter] + amount);
  }
  void forget(const std::string& counter) {
    const std::lock_guard lock(mutex_);
    counters_.erase(counter);
  }
  void leave_note(const std::string& name, const std::string& bytes) {
    const std::lock_guard lock(mutex_);
    notes_[name] = bytes;
  }
  std::optional<std::string> take_note(const std::string& name) {
    const std::lock_guard lock(mutex_);
    auto note = notes_.extract(name);
    return note ? std::optional(std::move(note.mapped())) : std::nullopt;
  }
  // Counters and notes that nobody has forgotten or taken.
  [[nodiscard]] size_t num_left() {
    const std::lock_guard lock(mutex_);
    return counters_.size() + notes_.size();
  }
  void fail(const Error& error) {
    const std::lock_guard lock(mutex_);
    if (!failed_) failed_ = error;
    changed_.notify_all();
    for (const auto& [place, part] : parts_) part->fail(error);
  }
  // Where the `index`-th group of `size` of these ranks meets. Groups of other kinds have negative numbers.
  MeetingPoint& part(int size, int index) { return meeting(size, {size, index}); }
  // Where all of these ranks meet a second time.
  MeetingPoint& side() { return meeting(static_cast<int>(bytes_.size()), {0, 0}); }
  // Bytes that the ranks sent, in groups as well.
  [[nodiscard]] size_t num_sent() const {
    size_t sum = num_sent_;
    for (const auto& [place, part] : parts_) sum += part->num_sent();
    return sum;
  }

 private:
  MeetingPoint& meeting(int size, std::pair<int, int> place) {
    const std::lock_guard lock(mutex_);
    std::unique_ptr<MeetingPoint>& found = parts_[place];
    if (found == nullptr) found = std::make_unique<MeetingPoint>(size);
    if (failed_) found->fail(*failed_);
    return *found;
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<std::string> bytes_, shown_;
  std::map<std::string, int64_t> counters_;
  std::map<std::string, std::string> notes_;
  std::map<std::pair<int, int>, std::unique_ptr<MeetingPoint>> parts_;
  int64_t turn_ = 0;
  int num_here_ = 0;
  size_t num_sent_ = 0;
  std::optional<Error> failed_;
};

}  // namespace mortise::test
