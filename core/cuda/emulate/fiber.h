// A fiber: a function with a stack of its own that leaves and is entered again. For x86-64 only.
//
// AddressSanitizer is told of every switch, because it keeps notes about the stack. For ThreadSanitizer a fiber
// is a thread, and a switch orders no memory.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#if defined(MORTISE_TSAN)
// libtsan has them, its header lacks them.
extern "C" {
void AnnotateIgnoreReadsBegin(const char* file, int line);
void AnnotateIgnoreReadsEnd(const char* file, int line);
void AnnotateIgnoreWritesBegin(const char* file, int line);
void AnnotateIgnoreWritesEnd(const char* file, int line);
}
#endif

namespace mortise::cuda {

// While one lives, ThreadSanitizer ignores this fiber or thread: for the memory of the emulator itself. A fiber must not
// leave meanwhile.
class Unwatched {
 public:
  Unwatched() {
#if defined(MORTISE_TSAN)
    AnnotateIgnoreReadsBegin(__FILE__, __LINE__);
    AnnotateIgnoreWritesBegin(__FILE__, __LINE__);
#endif
  }
  ~Unwatched() {
#if defined(MORTISE_TSAN)
    AnnotateIgnoreWritesEnd(__FILE__, __LINE__);
    AnnotateIgnoreReadsEnd(__FILE__, __LINE__);
#endif
  }
  Unwatched(const Unwatched&) = delete;
  Unwatched& operator=(const Unwatched&) = delete;
};

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
  [[maybe_unused]] void* tsan_ = nullptr;  // the sanitizer's thread for it
};

// The thread that enters fibers.
class FiberHost {
 public:
  void enter(Fiber& fiber);
  void leave(Fiber& fiber);  // on the fiber: back to enter()
  // On fiber `from`: continues with `to`, whose leave() returns to the enter() of `from`. Not for sanitizers. Faster than over
  // the host: return addresses are predicted well, because both fibers mostly stopped at the same place.
  static void hop(Fiber& from, Fiber& to);
  // For ThreadSanitizer, after start(): what the fiber does comes after the last release_order() of this place.
  static void begin(Fiber& fiber, const uint64_t& order);
  // The fiber will not be entered again before its next start(). Whoever acquires `order` comes after all that it did.
  // `is_done`: its function has nothing left to do.
  static void end(Fiber& fiber, const uint64_t& order, bool is_done);

 private:
  void* top_ = nullptr;
  [[maybe_unused]] void* asan_ = nullptr;
  [[maybe_unused]] void* tsan_ = nullptr;  // the host's own thread
  [[maybe_unused]] const void* stack_ = nullptr;
  [[maybe_unused]] size_t stack_bytes_ = 0;
};

// Orders memory for ThreadSanitizer: what this fiber did before release_order() comes before what another one does after
// acquire_order() of the same place.
void release_order(const uint64_t& place);
void acquire_order(const uint64_t& place);

}  // namespace mortise::cuda
