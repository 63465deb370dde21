// Counts the bytes that operator new has given out and not got back: how many, and the most since the last reset.
// Defines the program's operators new and delete: to be included by one source file of a test program. What libtorch
// takes for tensors does not come from them (counting_allocator.h).
// Thread rule: from any thread; exact where one thread allocates.
#pragma once

#include <malloc.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <new>

namespace mortise {

class CountingNew {
 public:
  static int64_t bytes() { return bytes_; }
  static int64_t peak() { return peak_; }
  static void reset_peak() { peak_ = bytes_.load(); }

  static void* allocate(std::size_t size) {
    void* const block = std::malloc(size == 0 ? 1 : size);
    if (block == nullptr) throw std::bad_alloc();
    const int64_t now = bytes_ += static_cast<int64_t>(malloc_usable_size(block));
    if (now > peak_) peak_ = now;
    return block;
  }
  static void release(void* block) {
    if (block == nullptr) return;
    bytes_ -= static_cast<int64_t>(malloc_usable_size(block));
    std::free(block);
  }

 private:
  static inline std::atomic<int64_t> bytes_{0}, peak_{0};
};

}  // namespace mortise

void* operator new(std::size_t size) { return mortise::CountingNew::allocate(size); }
void* operator new(std::size_t size, const std::nothrow_t& /*tag*/) noexcept {
  // Sanitizers have their own form of this one, whose memory the operators below could not release.
  try {
    return mortise::CountingNew::allocate(size);
  } catch (const std::bad_alloc&) {
    return nullptr;
  }
}
void operator delete(void* block) noexcept { mortise::CountingNew::release(block); }
void operator delete(void* block, std::size_t) noexcept { mortise::CountingNew::release(block); }
void operator delete(void* block, const std::nothrow_t& /*tag*/) noexcept { mortise::CountingNew::release(block); }
