// Products of float32 matrices with the kernels of f32_kernels.h. blas::gemm is the entry.
//
// The sum of a number is cut into blocks of k that depend on K only. The result therefore depends neither on threads
// nor on the other rows and columns: a row has the same bits in every batch.
// Memory: 512 KiB of packed panels in each thread, kept for the next call. Cost: 2 M N K flops.
// Thread rule: uses libtorch's threads outside a parallel region.
#pragma once

#include "model/tensor/f32_kernels.h"

namespace mortise {

// C[M,N] = alpha left[M,K] right[N,K]^T, or C += that (add).
void f32_gemm(const F32Kernels& kernels, int64_t m, int64_t n, int64_t k, const F32Operand& left,
              const F32Operand& right, float alpha, bool add, float* c, int64_t c_stride);

}  // namespace mortise
