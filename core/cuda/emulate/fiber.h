// A fiber: a function with a stack of its own that leaves and is entered again. For x86-64 only.
//
// AddressSanitizer is told of every switch, because it keeps notes about the stack.
#pragma once

#include <cstddef>
#include <memory>

namespace mortise::cuda {

class Fiber {
 public:
  Fiber() = default;
  Fiber(const Fiber&) = delete;
  Fiber& operator=(const Fiber&) = delete;
  // The next enter() calls function(argument), which must not return. What ran here before is forgotten.
  void start(void (*function)(void*), void* argument);

 private:
  friend class FiberHost;
  std::unique_ptr<char[]> stack_;
  size_t size_ = 0;  // what it uses of it
  void* top_ = nullptr;
  [[maybe_unused]] void* asan_ = nullptr;  // the sanitizer's copy of the stack, which the next start() uses again
};

// The thread that enters fibers.
class FiberHost {
 public:
  void enter(Fiber& fiber);
  void leave(Fiber& fiber);  // on the fiber: back to enter()

 private:
  void* top_ = nullptr;
  [[maybe_unused]] void* asan_ = nullptr;
  [[maybe_unused]] const void* stack_ = nullptr;
  [[maybe_unused]] size_t stack_bytes_ = 0;
};

}  // namespace mortise::cuda
