// Memory that a plugin cannot leave unseen: an unreadable page before and behind it, known bytes in what lies between.
//
// Data ends at the unreadable page (or less than `align` bytes before it, in known bytes), so a read or write one
// element too far ends the process, and report_faults() says whose end it was. For case processes only: regions are
// found by a signal handler through a fixed table. Cost: three mmaps' worth of pages each. Threading: a region belongs
// to one thread at a time; several threads may have regions.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

namespace mortise::check {

class GuardedMemory {
 public:
  GuardedMemory(const std::string& name, size_t size, size_t align = 64);
  GuardedMemory(GuardedMemory&& other) noexcept;
  GuardedMemory(const GuardedMemory&) = delete;
  GuardedMemory& operator=(const GuardedMemory&) = delete;
  GuardedMemory& operator=(GuardedMemory&&) = delete;
  ~GuardedMemory();

  [[nodiscard]] std::byte* data() const { return data_; }
  [[nodiscard]] size_t size() const { return size_; }
  template <class T>
  [[nodiscard]] T* as() const {
    return reinterpret_cast<T*>(data_);
  }
  void make_read_only();
  // "" or what was written outside the data.
  [[nodiscard]] std::string damage() const;

 private:
  std::string name_;
  std::byte* mapping_ = nullptr;
  size_t mapping_size_ = 0;
  std::byte* data_ = nullptr;
  size_t size_ = 0;
};

// From now on a SIGSEGV or SIGBUS at or near guarded memory leaves a line of JSON with what happened on `fd`
// ({"status":"failed","text":...}) before the signal ends the process.
void report_faults(int fd);

}  // namespace mortise::check
