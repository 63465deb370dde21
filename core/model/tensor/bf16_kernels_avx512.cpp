// The kernels of bf16_kernels.h for AVX512_BF16; flags in CMakeLists.txt. No standard headers but <cstdint>.
#include <immintrin.h>

#include <cstdint>

#include "model/tensor/bf16_kernels.h"

namespace mortise::isa_avx512bf16 {
namespace {

constexpr int64_t kLanes = 16;

// The low n bits (all of 16 or 32 for more).
inline __mmask16 first_lanes(int64_t n) {
  return n >= 16 ? __mmask16(0xffff) : n <= 0 ? __mmask16(0) : static_cast<__mmask16>((1U << n) - 1U);
}
inline __mmask32 first_halves(int64_t n) { return n >= 32 ? ~__mmask32(0) : (__mmask32(1) << n) - 1U; }

// 16 pairs of k from k on, of row i; numbers from the n-th on are zeros.
inline __m512i pairs_of_row(const Bf16Operand& from, int64_t i, int64_t k, int64_t n) {
  const int64_t at = i * from.stride + k;
  return _mm512_maskz_loadu_epi16(first_halves(n), static_cast<const uint16_t*>(from.data) + at);
}

// Number k of 16 rows from row i on, in the low halves of words.
inline __m512i numbers_of_rows(const Bf16Operand& from, int64_t i, int64_t k, __mmask16 lanes) {
  const int64_t at = k * from.stride + i;
  return _mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(lanes, static_cast<const uint16_t*>(from.data) + at));
}

// r[i] word j becomes r[j] word i.
inline void transpose(__m512i* r) {
  __m512i t[kLanes];
  for (int i = 0; i < 16; i += 2) {
    t[i] = _mm512_unpacklo_epi32(r[i], r[i + 1]);
    t[i + 1] = _mm512_unpackhi_epi32(r[i], r[i + 1]);
  }
  for (int i = 0; i < 16; i += 4) {
    r[i] = _mm512_unpacklo_epi64(t[i], t[i + 2]);
    r[i + 1] = _mm512_unpackhi_epi64(t[i], t[i + 2]);
    r[i + 2] = _mm512_unpacklo_epi64(t[i + 1], t[i + 3]);
    r[i + 3] = _mm512_unpackhi_epi64(t[i + 1], t[i + 3]);
  }
  for (int i = 0; i < 4; ++i) {
    t[i] = _mm512_shuffle_i32x4(r[i], r[4 + i], 0x88);
    t[4 + i] = _mm512_shuffle_i32x4(r[i], r[4 + i], 0xdd);
    t[8 + i] = _mm512_shuffle_i32x4(r[8 + i], r[12 + i], 0x88);
    t[12 + i] = _mm512_shuffle_i32x4(r[8 + i], r[12 + i], 0xdd);
  }
  for (int i = 0; i < 4; ++i) {
    r[i] = _mm512_shuffle_i32x4(t[i], t[8 + i], 0x88);
    r[4 + i] = _mm512_shuffle_i32x4(t[4 + i], t[12 + i], 0x88);
    r[8 + i] = _mm512_shuffle_i32x4(t[i], t[8 + i], 0xdd);
    r[12 + i] = _mm512_shuffle_i32x4(t[4 + i], t[12 + i], 0xdd);
  }
}

// Lanes [column, column + 16) of a panel, from rows [first, first + count).
void pack_lanes(const Bf16Operand& from, int64_t first, int64_t count, int64_t lanes, int64_t width, int64_t k_first,
                int64_t k_count, uint32_t* panel) {
  const __mmask16 kept = first_lanes(lanes), taken = first_lanes(count);
  if (!from.k_contiguous) {
    for (int64_t k = 0; k < k_count; k += 2, panel += width) {
      __m512i words = numbers_of_rows(from, first, k_first + k, taken);
      if (k + 1 < k_count) {
        const __m512i next = numbers_of_rows(from, first, k_first + k + 1, taken);
        words = _mm512_or_si512(words, _mm512_slli_epi32(next, 16));
      }
      _mm512_mask_storeu_epi32(panel, kept, words);
    }
    return;
  }
  for (int64_t k = 0; k < k_count; k += 2 * kLanes) {
    __m512i block[kLanes];
    for (int64_t i = 0; i < kLanes; ++i)
      block[i] = i < count ? pairs_of_row(from, first + i, k_first + k, k_count - k) : _mm512_setzero_si512();
    transpose(block);
    const int64_t left = (k_count - k + 1) / 2, pairs = left < kLanes ? left : kLanes;
    for (int64_t j = 0; j < pairs; ++j, panel += width) _mm512_mask_storeu_epi32(panel, kept, block[j]);
  }
}

void pack(const Bf16Operand& from, int64_t first, int64_t count, int64_t width, int64_t k_first, int64_t k_count,
          uint32_t* panel) {
  for (int64_t column = 0; column < width; column += kLanes)
    pack_lanes(from, first + column, count - column, width - column, width, k_first, k_count, panel + column);
}

template <int kRows>
void tile_rows(const uint32_t* left, const uint32_t* right, int64_t pairs, int64_t columns, float* c, int64_t c_stride,
               bool add) {
  __m512 sums[kRows][2];
#pragma GCC unroll 16
  for (int i = 0; i < kRows; ++i) sums[i][0] = sums[i][1] = _mm512_setzero_ps();
  for (int64_t pair = 0; pair < pairs; ++pair, left += kBf16TileRows, right += kBf16TileColumns) {
    const auto low = reinterpret_cast<__m512bh>(_mm512_loadu_si512(right));
    const auto high = reinterpret_cast<__m512bh>(_mm512_loadu_si512(right + kLanes));
#pragma GCC unroll 16
    for (int i = 0; i < kRows; ++i) {
      const auto x = reinterpret_cast<__m512bh>(_mm512_set1_epi32(static_cast<int>(left[i])));
      sums[i][0] = _mm512_dpbf16_ps(sums[i][0], x, low);
      sums[i][1] = _mm512_dpbf16_ps(sums[i][1], x, high);
    }
  }
  const __mmask16 masks[2] = {first_lanes(columns), first_lanes(columns - kLanes)};
#pragma GCC unroll 16
  for (int i = 0; i < kRows; ++i, c += c_stride) {
#pragma GCC unroll 2
    for (int v = 0; v < 2; ++v) {
      float* const to = c + v * kLanes;
      if (add) sums[i][v] = _mm512_add_ps(_mm512_maskz_loadu_ps(masks[v], to), sums[i][v]);
      _mm512_mask_storeu_ps(to, masks[v], sums[i][v]);
    }
  }
}

using TileRows = void (*)(const uint32_t*, const uint32_t*, int64_t, int64_t, float*, int64_t, bool);
constexpr TileRows kTiles[kBf16TileRows] = {tile_rows<1>,  tile_rows<2>,  tile_rows<3>,  tile_rows<4>, tile_rows<5>,
                                            tile_rows<6>,  tile_rows<7>,  tile_rows<8>,  tile_rows<9>, tile_rows<10>,
                                            tile_rows<11>, tile_rows<12>, tile_rows<13>, tile_rows<14>};

void tile(const uint32_t* left, const uint32_t* right, int64_t pairs, int64_t rows, int64_t columns, float* c,
          int64_t c_stride, bool add) {
  kTiles[rows - 1](left, right, pairs, columns, c, c_stride, add);
}

}  // namespace

extern const Bf16Kernels kBf16Kernels;
const Bf16Kernels kBf16Kernels = {pack, tile};

}  // namespace mortise::isa_avx512bf16
