// Products of bfloat16 matrices with the kernels of bf16_kernels.h. blas::gemm is the entry; it asks MKL on CPUs where
// that is faster.
//
// The sum of a number is cut into blocks of k that depend on K only. The result therefore depends neither on threads
// nor on the other rows and columns.
// Memory: at most 8 MiB of packed panels in each thread that calls, kept for the next call. Cost: 2 M N K flops.
// Thread rule: uses libtorch's threads outside a parallel region.
#pragma once

#include "model/tensor/bf16_kernels.h"

namespace mortise {

// C[M,N] = left[M,K] right[N,K]^T, or C += that (add).
void bf16_gemm(const Bf16Kernels& kernels, int64_t m, int64_t n, int64_t k, const Bf16Operand& left,
               const Bf16Operand& right, bool add, float* c, int64_t c_stride);

}  // namespace mortise
