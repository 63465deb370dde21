// The CPU kernels for the softmax of attention scores in float32, one table per instruction set.
//
// Rows of scores lie kScoreLanes numbers or a multiple of it apart, so that a row is whole vectors. What a row does not
// see becomes 0, up to the whole vector behind its last column. A row's result depends on its own numbers only.
// Thread rule: pure functions. This header and its implementations include no library code, because inline functions
// compiled for a newer CPU must not leak.
#pragma once

#include <cstdint>

namespace mortise {

inline constexpr int64_t kScoreLanes = 16;

// What row r of a block of scores sees: [max(0, r - lag), first_end + r) of `width` columns. Scores are capped first
// where cap > 0.
struct ScoreBlock {
  int64_t rows;
  int64_t width;
  int64_t stride;  // from a row to the next: at least `width`, and a multiple of kScoreLanes
  int64_t first_end;
  int64_t lag;  // row r's first column is r - lag; at least `rows` without a window
  double cap;
  double sink;  // a score more, whose probability counts in the sum and is no column; -infinity: none

  [[nodiscard, gnu::always_inline]] inline int64_t begin(int64_t r) const { return r > lag ? r - lag : 0; }
  [[nodiscard, gnu::always_inline]] inline int64_t end(int64_t r) const { return first_end + r; }
};

// Neither reads `cap`: their scores are not capped.
struct AttentionKernels {
  // As attention_softmax_ and attention_softmax_grad_ (attention_softmax.h).
  void (*softmax)(float* scores, const ScoreBlock& block, float* lse, int64_t lse_stride);
  void (*softmax_grad)(float* scores, float* dp, const ScoreBlock& block, const float* lse, float* dot,
                       int64_t lse_stride);
};

// The best kernels for this CPU; null if it has neither AVX-512 nor AVX2 with FMA.
const AttentionKernels* find_attention_kernels();

#ifdef __x86_64__
namespace isa_avx2 {
extern const AttentionKernels kAttentionKernels;
}
namespace isa_avx512 {
extern const AttentionKernels kAttentionKernels;
}
#endif

}  // namespace mortise
