// A fiber: a function with a stack of its own that leaves and is entered again. For x86-64 only.
//
// AddressSanitizer is told of every switch, because it keeps notes about the stack. ThreadSanitizer sees each fiber as a
// thread. A switch orders nothing for it; only SyncClock does.
#pragma once

#include <cstddef>
#include <memory>
#include <vector>

namespace mortise::cuda {

// What ThreadSanitizer must know: everything before release() happens before what follows acquire(). Else nothing.
class SyncClock {
 public:
  void release();
  void acquire();

 private:
  [[maybe_unused]] char address_ = 0;
};

class Fiber {
 public:
  Fiber() = default;
  Fiber(const Fiber&) = delete;
  Fiber& operator=(const Fiber&) = delete;
  ~Fiber();
  // The next enter() calls function(argument), which must not return. What ran here before is forgotten.
  void start(void (*function)(void*), void* argument);
  // ThreadSanitizer needs a new stack for each start. The old ones are kept until nobody can race with them.
  void forget_old_stacks() { old_.clear(); }

 private:
  friend class FiberHost;
  std::unique_ptr<char[]> stack_;
  std::vector<std::unique_ptr<char[]>> old_;
  void* top_ = nullptr;
  [[maybe_unused]] void* asan_ = nullptr;
  [[maybe_unused]] void* tsan_ = nullptr;
};

// The thread that enters fibers.
class FiberHost {
 public:
  void enter(Fiber& fiber);
  void leave(Fiber& fiber);  // on the fiber: back to enter()

 private:
  void* top_ = nullptr;
  [[maybe_unused]] void* asan_ = nullptr;
  [[maybe_unused]] void* tsan_ = nullptr;
  [[maybe_unused]] const void* stack_ = nullptr;
  [[maybe_unused]] size_t stack_bytes_ = 0;
};

}  // namespace mortise::cuda
