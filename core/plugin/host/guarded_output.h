// An output buffer between guard words: for runs with plugins.check, and for every call in a worker. After the call the
// engine sees what a plugin wrote outside it, and the heap is undamaged.
//
// It detects writes up to kGuardBytes before and after the data. `mortise plugin check` detects all of them, and reads
// too. Cost: the guards, and one pass over them, a fraction of a microsecond. Threading: plain memory.
#pragma once

#include <cstddef>
#include <memory>
#include <string>

namespace mortise {

class GuardedOutput {
 public:
  static constexpr size_t kGuardBytes = 4096;

  explicit GuardedOutput(size_t bytes);  // data() is 64-byte aligned, its bytes are not set
  // Guards memory of somebody else in place: kGuardBytes before and behind it become guard words.
  GuardedOutput(void* data, size_t bytes);

  [[nodiscard]] void* data() const { return data_; }
  // "" or "wrote 4 bytes behind the end of".
  [[nodiscard]] std::string damage() const;

 private:
  struct Free {
    void operator()(std::byte* memory) const;
  };
  void write_guards();

  std::unique_ptr<std::byte, Free> memory_;  // null: somebody else's
  std::byte* data_;
  size_t bytes_;
  size_t bytes_behind_;  // size of the guard after the data
};

}  // namespace mortise
