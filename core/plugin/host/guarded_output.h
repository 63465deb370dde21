// An output buffer between guard words, for runs with plugins.check. After the call the engine sees what a plugin wrote
// outside it, and the heap is undamaged.
//
// It detects writes up to kGuardBytes before and after the data. `mortise plugin check` detects all of them, and reads
// too. Cost: the guards, and one pass over them. Threading: plain memory.
#pragma once

#include <cstddef>
#include <memory>
#include <string>

namespace mortise {

class GuardedOutput {
 public:
  static constexpr size_t kGuardBytes = 4096;

  explicit GuardedOutput(size_t bytes);  // data() is 64-byte aligned, its bytes are not set

  [[nodiscard]] void* data() const { return memory_.get() + kGuardBytes; }
  // "" or "wrote 4 bytes behind the end of".
  [[nodiscard]] std::string damage() const;

 private:
  struct Free {
    void operator()(std::byte* memory) const;
  };
  size_t bytes_;
  size_t total_;
  std::unique_ptr<std::byte, Free> memory_;
};

}  // namespace mortise
