// See attention_softmax.h.
#include "model/layers/attention_softmax.h"

#include <cmath>
#include <limits>

#include "model/tensor/kernel.h"
#include "model/tensor/vector_math.h"

namespace mortise {
namespace {

template <class T>
MORTISE_INLINE void cap_row(T* __restrict scores, int64_t begin, int64_t end, T cap) {
  const T inverse = T(1) / cap;
#pragma omp simd
  for (int64_t i = begin; i < end; ++i) scores[i] = cap * fast_tanh(scores[i] * inverse);
}

// scores[begin, end) become exp(score - max); the rest of the row becomes 0. Returns lse and 1 / sum.
template <class T>
MORTISE_INLINE void softmax_row(T* __restrict scores, int64_t begin, int64_t end, int64_t width, T sink, T* lse,
                                T* inverse_sum) {
  T max = sink;
#pragma omp simd reduction(max : max)
  for (int64_t i = begin; i < end; ++i) max = scores[i] > max ? scores[i] : max;
  T sum = 0;
  if (sink > -std::numeric_limits<T>::infinity()) sum = fast_exp(sink - max);
#pragma omp simd reduction(+ : sum)
  for (int64_t i = begin; i < end; ++i) {
    const T e = fast_exp(scores[i] - max);
    scores[i] = e;
    sum += e;
  }
  for (int64_t i = 0; i < begin; ++i) scores[i] = 0;
  for (int64_t i = end; i < width; ++i) scores[i] = 0;
  *lse = max + std::log(sum);
  *inverse_sum = T(1) / sum;
}

// p = exp(score - lse) remains in scores, and ds = p (dp - sum p dp) replaces dp. Both are 0 outside [begin, end).
// Returns sum p dp.
template <class T>
MORTISE_INLINE T softmax_grad_row(T* __restrict scores, T* __restrict dp, int64_t begin, int64_t end, T lse) {
  T dot = 0;
#pragma omp simd reduction(+ : dot)
  for (int64_t i = begin; i < end; ++i) {
    const T p = fast_exp(scores[i] - lse);
    scores[i] = p;
    dot += p * dp[i];
  }
#pragma omp simd
  for (int64_t i = begin; i < end; ++i) dp[i] = scores[i] * (dp[i] - dot);
  return dot;
}

// The same for capped scores: the cap's slope 1 - (score / cap)^2 goes into ds.
template <class T>
MORTISE_INLINE T capped_grad_row(T* __restrict scores, T* __restrict dp, int64_t begin, int64_t end, T lse, T cap) {
  const T inverse = T(1) / cap;
  T dot = 0;
#pragma omp simd reduction(+ : dot)
  for (int64_t i = begin; i < end; ++i) {
    scores[i] = cap * fast_tanh(scores[i] * inverse);
    dot += fast_exp(scores[i] - lse) * dp[i];
  }
#pragma omp simd
  for (int64_t i = begin; i < end; ++i) {
    const T p = fast_exp(scores[i] - lse);
    const T t = scores[i] * inverse;
    scores[i] = p;
    dp[i] = p * (dp[i] - dot) * (T(1) - t * t);
  }
  return dot;
}

// A block of query rows. Scores become probabilities.
template <class T>
MORTISE_INLINE void softmax_block(T* scores, const ScoreBlock& block, T* lse, int64_t lse_stride) {
  for (int64_t r = 0; r < block.rows; ++r) {
    T* row = scores + r * block.stride;
    T inverse_sum;
    if (block.cap > 0.0) cap_row(row, block.begin(r), block.end(r), static_cast<T>(block.cap));
    softmax_row(row, block.begin(r), block.end(r), block.width, static_cast<T>(block.sink), lse + r * lse_stride,
                &inverse_sum);
#pragma omp simd
    for (int64_t i = block.begin(r); i < block.end(r); ++i) row[i] *= inverse_sum;
  }
}

template <class T>
MORTISE_INLINE void softmax_grad_block(T* scores, T* dp, const ScoreBlock& block, const T* lse, T* dots,
                                       int64_t lse_stride) {
  for (int64_t r = 0; r < block.rows; ++r) {
    T* row = scores + r * block.stride;
    T* grad = dp + r * block.stride;
    const int64_t begin = block.begin(r);
    const int64_t end = block.end(r);
    const T dot = block.cap > 0.0
                      ? capped_grad_row(row, grad, begin, end, lse[r * lse_stride], static_cast<T>(block.cap))
                      : softmax_grad_row(row, grad, begin, end, lse[r * lse_stride]);
    if (dots != nullptr) dots[r * lse_stride] = dot;
    for (int64_t i = 0; i < begin; ++i) row[i] = grad[i] = 0;
    for (int64_t i = end; i < block.width; ++i) row[i] = grad[i] = 0;
  }
}

MORTISE_CPU_CLONES void forward_kernel(float* s, const ScoreBlock& block, float* lse, int64_t ld) {
  softmax_block(s, block, lse, ld);
}
MORTISE_CPU_CLONES void forward_kernel(double* s, const ScoreBlock& block, double* lse, int64_t ld) {
  softmax_block(s, block, lse, ld);
}
MORTISE_CPU_CLONES void backward_kernel(float* s, float* dp, const ScoreBlock& block, const float* lse, float* dots,
                                        int64_t ld) {
  softmax_grad_block(s, dp, block, lse, dots, ld);
}
MORTISE_CPU_CLONES void backward_kernel(double* s, double* dp, const ScoreBlock& block, const double* lse, double* dots,
                                        int64_t ld) {
  softmax_grad_block(s, dp, block, lse, dots, ld);
}

}  // namespace

void attention_softmax_(float* scores, const ScoreBlock& block, float* lse, int64_t lse_stride) {
  const AttentionKernels* const kernels = block.cap > 0.0 ? nullptr : find_attention_kernels();
  if (kernels == nullptr) return forward_kernel(scores, block, lse, lse_stride);
  kernels->softmax(scores, block, lse, lse_stride);
}
void attention_softmax_(double* scores, const ScoreBlock& block, double* lse, int64_t lse_stride) {
  forward_kernel(scores, block, lse, lse_stride);
}
void attention_softmax_grad_(float* scores, float* dp, const ScoreBlock& block, const float* lse, float* dot,
                             int64_t lse_stride) {
  const AttentionKernels* const kernels = block.cap > 0.0 ? nullptr : find_attention_kernels();
  if (kernels == nullptr) return backward_kernel(scores, dp, block, lse, dot, lse_stride);
  kernels->softmax_grad(scores, dp, block, lse, dot, lse_stride);
}
void attention_softmax_grad_(double* scores, double* dp, const ScoreBlock& block, const double* lse, double* dot,
                             int64_t lse_stride) {
  backward_kernel(scores, dp, block, lse, dot, lse_stride);
}

const AttentionKernels* find_attention_kernels() {
#ifdef __x86_64__
  static const AttentionKernels* const kernels =
      best_for_this_cpu(&isa_avx512::kAttentionKernels, &isa_avx2::kAttentionKernels);
  return kernels;
#else
  return nullptr;
#endif
}

}  // namespace mortise
