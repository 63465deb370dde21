// See fiber.h.
#include "cuda/emulate/fiber.h"

#include <utility>

#if defined(MORTISE_ASAN)
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
#endif
#if defined(MORTISE_TSAN)
#include <sanitizer/tsan_interface.h>
#endif

// mortise_cuda_switch(save, next): pushes the registers that a function must keep, notes the stack's top in *save, and
// continues with the stack whose top is `next`. A new fiber begins at mortise_cuda_first. The register rbx then holds the
// fiber's function, and r12 the argument of that function.
extern "C" void mortise_cuda_switch(void** save, void* next);
extern "C" void mortise_cuda_first();
asm(R"(
  .text
  .globl mortise_cuda_switch
  .hidden mortise_cuda_switch
  .type mortise_cuda_switch, @function
mortise_cuda_switch:
  push %rbp
  push %rbx
  push %r12
  push %r13
  push %r14
  push %r15
  mov %rsp, (%rdi)
  mov %rsi, %rsp
  pop %r15
  pop %r14
  pop %r13
  pop %r12
  pop %rbx
  pop %rbp
  ret
  .size mortise_cuda_switch, . - mortise_cuda_switch
  .globl mortise_cuda_first
  .hidden mortise_cuda_first
  .type mortise_cuda_first, @function
mortise_cuda_first:
  mov %r12, %rdi
  call *%rbx
  ud2
  .size mortise_cuda_first, . - mortise_cuda_first
)");

namespace mortise::cuda {
namespace {

constexpr size_t kStackBytes = 80 << 10;
// Stacks begin at different places of a page, else the fibers of a warp would share few lines of the CPU's cache.
constexpr size_t kShades = 32, kShadeBytes = 512;

// The fiber's function, called after the sanitizer has learnt of its stack. Its size keeps the stack at a multiple of 16.
struct alignas(16) Start {
  void (*function)(void*);
  void* argument;
  void* asan;
};

[[maybe_unused]] const void** host_stack = nullptr;  // where a fiber that begins notes the stack it came from
[[maybe_unused]] size_t* host_stack_bytes = nullptr;

void first(void* it) {
  const Start start = *static_cast<const Start*>(it);
#if defined(MORTISE_ASAN)
  __sanitizer_finish_switch_fiber(start.asan, host_stack, host_stack_bytes);
#endif
  start.function(start.argument);
}

}  // namespace

void Fiber::start(void (*function)(void*), void* argument) {
  static size_t num_stacks = 0;
#if defined(MORTISE_TSAN)
  if (tsan_ == nullptr) tsan_ = __tsan_create_fiber(0);
#endif
  if (!stack_) {
    stack_.reset(new char[kStackBytes]);
    size_ = kStackBytes - num_stacks++ % kShades * kShadeBytes;
  }
#if defined(MORTISE_ASAN)
  __asan_unpoison_memory_region(stack_.get(), kStackBytes);  // functions that never returned have left their marks
#endif
  const uintptr_t end = (reinterpret_cast<uintptr_t>(stack_.get()) + size_) & ~uintptr_t{15};
  auto* const start = reinterpret_cast<Start*>(end) - 1;
  *start = {function, argument, asan_};
  // Seven words that mortise_cuda_switch pops: r15 r14 r13 r12 rbx rbp and the return address. mortise_cuda_first then
  // begins with a stack that 16 divides, as a call needs.
  auto* const words = reinterpret_cast<uintptr_t*>(start) - 7;
  words[0] = words[1] = words[2] = words[5] = 0;
  words[3] = reinterpret_cast<uintptr_t>(start);
  words[4] = reinterpret_cast<uintptr_t>(&first);
  words[6] = reinterpret_cast<uintptr_t>(&mortise_cuda_first);
  top_ = words;
}

void FiberHost::enter(Fiber& fiber) {
#if defined(MORTISE_ASAN)
  host_stack = &stack_;
  host_stack_bytes = &stack_bytes_;
  __sanitizer_start_switch_fiber(&asan_, fiber.stack_.get(), kStackBytes);
#endif
#if defined(MORTISE_TSAN)
  tsan_ = __tsan_get_current_fiber();
  __tsan_switch_to_fiber(fiber.tsan_, __tsan_switch_to_fiber_no_sync);
#endif
  mortise_cuda_switch(&top_, fiber.top_);
#if defined(MORTISE_ASAN)
  __sanitizer_finish_switch_fiber(asan_, nullptr, nullptr);
#endif
}

void FiberHost::leave(Fiber& fiber) {
#if defined(MORTISE_ASAN)
  __sanitizer_start_switch_fiber(&fiber.asan_, stack_, stack_bytes_);
#endif
#if defined(MORTISE_TSAN)
  __tsan_switch_to_fiber(tsan_, __tsan_switch_to_fiber_no_sync);
#endif
  mortise_cuda_switch(&fiber.top_, top_);
#if defined(MORTISE_ASAN)
  __sanitizer_finish_switch_fiber(fiber.asan_, &stack_, &stack_bytes_);
#endif
}

void FiberHost::hop(Fiber& from, Fiber& to) { mortise_cuda_switch(&from.top_, to.top_); }

#if defined(MORTISE_TSAN)
// Runs the body as this fiber for the sanitizer, on the stack of the host.
template <class Body>
void as_fiber(void* fiber, const Body& body) {
  void* const host = __tsan_get_current_fiber();
  __tsan_switch_to_fiber(fiber, __tsan_switch_to_fiber_no_sync);
  body();
  __tsan_switch_to_fiber(host, __tsan_switch_to_fiber_no_sync);
}
#endif

void FiberHost::begin([[maybe_unused]] Fiber& fiber, [[maybe_unused]] const uint64_t& order) {
#if defined(MORTISE_TSAN)
  as_fiber(fiber.tsan_, [&] { acquire_order(order); });
#endif
}

void FiberHost::end([[maybe_unused]] Fiber& fiber, [[maybe_unused]] const uint64_t& order,
                    [[maybe_unused]] bool is_done) {
#if defined(MORTISE_TSAN)
  as_fiber(fiber.tsan_, [&] { release_order(order); });
  if (is_done) return;
  __tsan_destroy_fiber(fiber.tsan_);  // it has functions that never return
  fiber.tsan_ = nullptr;
#endif
}

void release_order([[maybe_unused]] const uint64_t& place) {
#if defined(MORTISE_TSAN)
  __tsan_release(const_cast<uint64_t*>(&place));
#endif
}

void acquire_order([[maybe_unused]] const uint64_t& place) {
#if defined(MORTISE_TSAN)
  __tsan_acquire(const_cast<uint64_t*>(&place));
#endif
}

}  // namespace mortise::cuda
