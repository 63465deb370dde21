// Row-major matrix products on raw pointers, for kernels that multiply strided blocks inside a parallel region. Outside
// one, they use libtorch's threads. A size above INT_MAX is a c10::Error. Cost: 2 M N K flops plus less than a
// microsecond per call.
// float32 products with few columns or short sums go to f32_gemm.h, with beta 0 or 1 and on CPUs with AVX-512 or AVX2:
// those of small models, of attention, and half of a head's. On AMD's processors with AVX-512, products with more than a
// few rows do, too. All others go to the BLAS inside libtorch_cpu (MKL), on AMD's processors in tiles. There, the bits of no
// product depend on the number of threads.
#pragma once

#include <c10/util/BFloat16.h>

#include <cstdint>

namespace mortise::blas {

enum class Trans : char { kNo = 'N', kYes = 'T' };

// C[M,N] = alpha * op(A)[M,K] * op(B)[K,N] + beta * C; lda, ldb, ldc are row strides of the stored matrices.
void gemm(Trans trans_a, Trans trans_b, int64_t m, int64_t n, int64_t k, float alpha, const float* a, int64_t lda,
          const float* b, int64_t ldb, float beta, float* c, int64_t ldc);
void gemm(Trans trans_a, Trans trans_b, int64_t m, int64_t n, int64_t k, double alpha, const double* a, int64_t lda,
          const double* b, int64_t ldb, double beta, double* c, int64_t ldc);
// bfloat16 numbers, whose products are added in float32: by bf16_gemm.h on CPUs where it is faster (with alpha 1 and beta
// 0 or 1), else by MKL. On CPUs without instructions for it, and on AMD's, MKL widens the numbers.
void gemm(Trans trans_a, Trans trans_b, int64_t m, int64_t n, int64_t k, float alpha, const c10::BFloat16* a,
          int64_t lda, const c10::BFloat16* b, int64_t ldb, float beta, float* c, int64_t ldc);

}  // namespace mortise::blas
