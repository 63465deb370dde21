// How much memory the values of a rendering hold, so that a template that keeps what it makes ends in an error.
//
// Every text, list and dict counts itself while it lives; the count is the thread's. A value that was made on another
// thread, as a template's literals may be, only shifts the count, and a rendering looks at differences.
// Thread rule: a rendering's values belong to its thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>

namespace mortise::jinja {

inline thread_local int64_t live_bytes = 0;

class LiveBytes {
 public:
  LiveBytes() = default;
  explicit LiveBytes(size_t bytes) { add(bytes); }
  LiveBytes(const LiveBytes& other) : LiveBytes(other.bytes_) {}
  LiveBytes(LiveBytes&& other) noexcept : bytes_(std::exchange(other.bytes_, 0)) {}
  LiveBytes& operator=(LiveBytes other) noexcept {
    std::swap(bytes_, other.bytes_);
    return *this;
  }
  ~LiveBytes() { live_bytes -= static_cast<int64_t>(bytes_); }

  void add(size_t bytes) {
    bytes_ += bytes;
    live_bytes += static_cast<int64_t>(bytes);
  }
  void clear() { *this = LiveBytes(); }

 private:
  size_t bytes_ = 0;
};

}  // namespace mortise::jinja
