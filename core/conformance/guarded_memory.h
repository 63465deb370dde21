// Memory that a plugin cannot leave unnoticed: an unreadable page before and after it, and known bytes in between.
//
// Data ends at the unreadable page (or less than `align` bytes before it, in known bytes). A read or write one element
// too far therefore ends the process, and report_faults() names the region. For case processes only, because a signal
// handler finds regions through a fixed table. Cost: the pages of three mmaps each. Threading: a region belongs to one
// thread at a time; several threads may have regions.
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
  int region_ = -1;  // its row in the table of the signal handler; -1: the table was full
};

// From now on a SIGSEGV or SIGBUS at or near guarded memory leaves a line of JSON with what happened on `fd`
// ({"status":"failed","text":...}) before the signal ends the process.
void report_faults(int fd);

}  // namespace mortise::check
