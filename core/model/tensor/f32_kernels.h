// The CPU kernels for products of float32 matrices, one table per instruction set.
//
// A panel holds kF32Columns columns of the right operand as numbers [k][kF32Columns]; columns beyond the operand are
// zeros. The left operand is read where it lies. Every number of a product is one chain of fused multiply-adds in the
// order of k. So it depends on its own row and column only: neither on the other rows and columns, nor on threads.
// Thread rule: pure functions. This header and its implementations include no library code, because inline functions
// compiled for a newer CPU must not leak.
#pragma once

#include <cstdint>

namespace mortise {

inline constexpr int64_t kF32Columns = 32;  // columns of a panel
inline constexpr int64_t kF32BlockK = 256;  // the longest chain of a number; the caller adds blocks of k

// An operand: number (i, k) is at i * stride + k if its rows are contiguous (k_contiguous), else at k * stride + i.
struct F32Operand {
  const float* data = nullptr;
  int64_t stride = 0;
  bool k_contiguous = true;

  [[nodiscard, gnu::always_inline]] inline const float* at(int64_t i, int64_t k) const {
    return data + (k_contiguous ? i * stride + k : k * stride + i);
  }
};

struct F32Kernels {
  // Rows [first, first + count) of an operand, count <= kF32Columns, for k in [k_first, k_first + k_count).
  void (*pack)(const F32Operand& from, int64_t first, int64_t count, int64_t k_first, int64_t k_count, float* panel);
  // c[rows][columns] = alpha left panels, or += that (add). `left` begins at the first row and the first k; the panels of
  // the columns lie one after the other; k <= kF32BlockK.
  void (*multiply)(const F32Operand& left, const float* panels, int64_t rows, int64_t columns, int64_t k, float alpha,
                   float* c, int64_t c_stride, bool add);
};

// The best kernels for this CPU; null if it has neither AVX-512 nor AVX2 with FMA.
const F32Kernels* find_f32_kernels();

#ifdef __x86_64__
namespace isa_avx2 {
extern const F32Kernels kF32Kernels;
}
namespace isa_avx512 {
extern const F32Kernels kF32Kernels;
}
#endif

}  // namespace mortise
