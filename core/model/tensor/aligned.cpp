// See aligned.h. A pass over all weights of a large model touches half a million small pages, more than the processor
// keeps translations of.
#include "model/tensor/aligned.h"

#include <sys/mman.h>

#include <cstring>
#include <new>

namespace mortise {
namespace {

constexpr size_t kHugePage = size_t{2} << 20;
constexpr size_t round_up(size_t x) { return (x + kHugePage - 1) / kHugePage * kHugePage; }

}  // namespace

void FreeFloats::operator()(float* p) const {
  if (mapped != nullptr) {
    ::munmap(mapped, mapped_size);
  } else {
    ::operator delete (p, std::align_val_t{64});
  }
}

FloatBuffer::Memory FloatBuffer::allocate(size_t bytes) {
  if (bytes < 2 * kHugePage) {
    void* const p = ::operator new (bytes, std::align_val_t{64});
    std::memset(p, 0, bytes);
    return Memory(static_cast<float*>(p));
  }
  const size_t whole = round_up(bytes) + kHugePage;  // room to begin at a huge page's border
  void* const mapped = ::mmap(nullptr, whole, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (mapped == MAP_FAILED) throw std::bad_alloc();
  auto* const begin = reinterpret_cast<float*>(round_up(reinterpret_cast<uintptr_t>(mapped)));
  ::madvise(begin, round_up(bytes), MADV_HUGEPAGE);  // a hint: small pages give the same numbers
  return Memory(begin, FreeFloats{mapped, whole});
}

}  // namespace mortise
