// The CPU kernels for products of bfloat16 matrices: packing of operands, and register tiles of the result.
//
// A panel holds `width` rows of an operand (columns of the right one) as words [pair of k][width]: a word has the
// numbers of an even k (low half) and of the next one. Rows beyond the operand and an odd last k are zeros. A tile adds
// pair after pair in the order of k, so its numbers depend neither on the rest of the matrix nor on threads.
// Cost: a tile of 14 x 32 takes 28 instructions for each pair. Thread rule: pure functions. This header and its
// implementation include no library code, because inline functions compiled for a newer CPU must not leak.
#pragma once

#include <cstdint>

namespace mortise {

inline constexpr int64_t kBf16TileRows = 14;     // rows of a tile: what the registers hold
inline constexpr int64_t kBf16TileColumns = 32;  // columns of a tile

// An operand: number (i, k) is at i * stride + k if its rows are contiguous (k_contiguous), else at k * stride + i.
struct Bf16Operand {
  const void* data = nullptr;  // bfloat16
  int64_t stride = 0;
  bool k_contiguous = true;
};

struct Bf16Kernels {
  // The panel of rows [first, first + count) and of k in [k_first, k_first + k_count). `width`: kBf16TileRows or
  // kBf16TileColumns; count <= width.
  void (*pack)(const Bf16Operand& from, int64_t first, int64_t count, int64_t width, int64_t k_first, int64_t k_count,
               uint32_t* panel);
  // c[rows][columns] = (add = false) or += left panel x right panel.
  void (*tile)(const uint32_t* left, const uint32_t* right, int64_t pairs, int64_t rows, int64_t columns, float* c,
               int64_t c_stride, bool add);
};

// The kernels, if this CPU has the instructions (AVX512_BF16).
const Bf16Kernels* find_bf16_kernels();

// Whether dot products of bfloat16 are faster than those of float32 on this CPU. On AMD's from Zen 4 on they are twice as
// fast. On Intel's they are half as fast, and MKL multiplies faster with AMX.
bool has_fast_bf16_dot();

#ifdef __x86_64__
namespace isa_avx512bf16 {
extern const Bf16Kernels kBf16Kernels;
}
#endif

}  // namespace mortise
