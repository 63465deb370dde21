// See allocations.h.
#include "fuzz/allocations.h"

#include <malloc.h>

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <new>

namespace {

thread_local int64_t now_bytes = 0;
thread_local int64_t start_bytes = 0;
thread_local int64_t peak_bytes = 0;

void count_new(const void* address, size_t size) {
  if (address == nullptr) return;
  now_bytes += static_cast<int64_t>(size);
  peak_bytes = std::max(peak_bytes, now_bytes);
}

}  // namespace

#if defined(MORTISE_ASAN)

extern "C" int __sanitizer_install_malloc_and_free_hooks(void (*malloc_hook)(const volatile void*, size_t),
                                                         void (*free_hook)(const volatile void*));
extern "C" size_t __sanitizer_get_allocated_size(const volatile void* address);

namespace {

const int installed = __sanitizer_install_malloc_and_free_hooks(
    [](const volatile void* address, size_t size) { count_new(const_cast<const void*>(address), size); },
    [](const volatile void* address) {
      if (address != nullptr) now_bytes -= static_cast<int64_t>(__sanitizer_get_allocated_size(address));
    });

}  // namespace

#else

namespace {

void* counted_new(size_t size, size_t align) {
  void* const address = align <= alignof(std::max_align_t)
                            ? std::malloc(size)
                            : std::aligned_alloc(align, (size + align - 1) / align * align);
  if (address == nullptr) throw std::bad_alloc();
  count_new(address, ::malloc_usable_size(address));
  return address;
}

void counted_delete(void* address) {
  if (address != nullptr) now_bytes -= static_cast<int64_t>(::malloc_usable_size(address));
  std::free(address);
}

}  // namespace

void* operator new(size_t size) { return counted_new(size, 1); }
void* operator new[](size_t size) { return counted_new(size, 1); }
void* operator new(size_t size, std::align_val_t align) { return counted_new(size, static_cast<size_t>(align)); }
void* operator new[](size_t size, std::align_val_t align) { return counted_new(size, static_cast<size_t>(align)); }
void operator delete(void* address) noexcept { counted_delete(address); }
void operator delete[](void* address) noexcept { counted_delete(address); }
void operator delete(void* address, size_t) noexcept { counted_delete(address); }
void operator delete[](void* address, size_t) noexcept { counted_delete(address); }
void operator delete(void* address, std::align_val_t) noexcept { counted_delete(address); }
void operator delete[](void* address, std::align_val_t) noexcept { counted_delete(address); }
void operator delete(void* address, size_t, std::align_val_t) noexcept { counted_delete(address); }
void operator delete[](void* address, size_t, std::align_val_t) noexcept { counted_delete(address); }

#endif

namespace mortise::fuzz {

Allocations::Allocations() { start_bytes = ::peak_bytes = now_bytes; }

size_t Allocations::peak_bytes() const { return static_cast<size_t>(std::max<int64_t>(::peak_bytes - start_bytes, 0)); }

}  // namespace mortise::fuzz
