// Products of float32 matrices with the kernels of f32_kernels.h. blas::gemm is the entry.
//
// The sum of a number is cut into blocks of k that depend on K only. The result therefore depends neither on threads
// nor on the other rows and columns: a row has the same bits in every batch.
// Memory: 512 KiB of packed panels in each thread, kept for the next call. Cost: 2 M N K flops.
// Thread rule: uses libtorch's threads outside a parallel region.
#pragma once

#include <memory>

#include "model/tensor/f32_kernels.h"
#include "model/tensor/kernel.h"

namespace mortise {

// How a sum of K terms is cut into blocks, which are added up in order. Their number is even if K takes more than one: two
// threads may then have the same work.
int64_t num_f32_blocks(int64_t k);
BlockRange f32_block(int64_t k, int64_t i);

// blas::gemm() calls f32_gemm() for products with at most so many columns (N), or with sums that are at most so long (K).
inline constexpr int64_t kFewForF32 = 128;

// Whether it also calls f32_gemm() for all products with at least kManyForSlowBlas rows (M): on AMD's processors with
// AVX-512, where MKL uses AVX2. With fewer rows, packing the right operand takes longer than it saves.
bool has_slow_f32_blas();
inline constexpr int64_t kManyForSlowBlas = 8;

// C[M,N] = alpha left[M,K] right[N,K]^T, or C += that (add).
void f32_gemm(const F32Kernels& kernels, int64_t m, int64_t n, int64_t k, const F32Operand& left,
              const F32Operand& right, float alpha, bool add, float* c, int64_t c_stride);

// out[M,N] = alpha left[K,M]^T right[K,N], or += that (add), of a block of K: K <= kF32BlockK. Rows are contiguous, `panels`
// has room for right with its columns filled up to kF32Columns. On the calling thread.
void f32_transposed_product(const F32Kernels& kernels, int64_t m, int64_t n, int64_t k, const float* left,
                            int64_t left_stride, const float* right, int64_t right_stride, float alpha, float* panels,
                            float* out, bool add);

// right[N,K]^T, packed once for products with many blocks of rows: C[M,N] = left[M,K] right[N,K]^T, with the same bits as
// f32_gemm(). Memory: a copy of the matrix, its columns filled up to kF32Columns. Thread rule: multiply() from any thread.
class F32Packed {
 public:
  F32Packed(const F32Kernels& kernels, const F32Operand& right, int64_t n, int64_t k);
  // `left` has contiguous rows of K numbers, `c` rows of N.
  void multiply(const float* left, int64_t rows, float* c) const;

 private:
  const F32Kernels& kernels_;
  int64_t n_, k_;
  std::unique_ptr<float[]> panels_;
};

}  // namespace mortise
