// The gradients of the norm of rows (rms_norm_kernel in decode.cuh). A block takes MORTISE_CUDA_NORM_ROWS rows one after the
// other, and reads each number once. Its part of the weight's gradient stays in registers until its last row, and a second
// launch adds the parts. Sums have a fixed order that depends on the number of rows alone.
#pragma once

#include "cuda/kernels/dialect.cuh"
#include "cuda/module.h"

namespace mortise::cuda {

// With f = 1 / sqrt(mean(x^2) + eps): dx = f (w dy - x f^2 mean(w dy x)) + extra, where `extra` may be null. A thread has
// kColumns numbers of a row. part_sums [blocks, width] gets what the rows of each block add to the weight's gradient.
template <class T, int kColumns>
__global__ void __launch_bounds__(kThreads)
    rms_norm_backward_kernel(const float* __restrict__ x, const float* __restrict__ weight, float eps, int64_t num_rows,
                             int64_t width, const T* __restrict__ dy, const float* __restrict__ extra, float* dx,
                             float* part_sums) {
  const int64_t first = int64_t{blockIdx.x} * MORTISE_CUDA_NORM_ROWS;
  const int64_t end = first + MORTISE_CUDA_NORM_ROWS < num_rows ? first + MORTISE_CUDA_NORM_ROWS : num_rows;
  float d_weight[kColumns] = {};
  for (int64_t row = first; row < end; ++row) {
    float own[kColumns], gradient[kColumns];
    double sums[2] = {0, 0};  // x^2 and w dy x
    MORTISE_UNROLL
    for (int j = 0; j < kColumns; ++j) {
      const int64_t i = int64_t{threadIdx.x} + j * kThreads;
      own[j] = i < width ? x[row * width + i] : 0.0F;
      gradient[j] = i < width ? number_of(dy[row * width + i]) : 0.0F;
      const float weighted = i < width ? gradient[j] * weight[i] : 0.0F;
      sums[0] += static_cast<double>(own[j] * own[j]);
      sums[1] += static_cast<double>(weighted * own[j]);
    }
    block_sums(sums, static_cast<int>(row % 2));
    const double mean = sums[0] / static_cast<double>(width);
    const float factor = static_cast<float>(1.0 / sqrt(mean + static_cast<double>(eps)));
    const float shift = static_cast<float>(sums[1] / static_cast<double>(width)) * factor * factor;
    MORTISE_UNROLL
    for (int j = 0; j < kColumns; ++j) {
      const int64_t i = int64_t{threadIdx.x} + j * kThreads;
      if (i >= width) continue;
      d_weight[j] += gradient[j] * own[j] * factor;
      const float d = factor * (gradient[j] * weight[i] - own[j] * shift);
      dx[row * width + i] = extra != nullptr ? d + extra[row * width + i] : d;
    }
  }
  MORTISE_UNROLL
  for (int j = 0; j < kColumns; ++j) {
    const int64_t i = int64_t{threadIdx.x} + j * kThreads;
    if (i < width) part_sums[blockIdx.x * width + i] = d_weight[j];
  }
}

// The sums of the columns of parts [num_parts, width]. A block has 32 columns, and each of its warps every kWarps-th part.
__global__ void __launch_bounds__(kThreads)
    column_sum_kernel(const float* __restrict__ parts, int64_t num_parts, int64_t width, float* sums) {
  MORTISE_SHARED(double, warp_sums, kThreads);
  const int64_t column = int64_t{blockIdx.x} * 32 + threadIdx.x % 32;
  double sum = 0;
  for (int64_t part = threadIdx.x / 32; part < num_parts; part += kWarps)
    if (column < width) sum += static_cast<double>(parts[part * width + column]);
  warp_sums[threadIdx.x] = sum;
  __syncthreads();
  if (threadIdx.x >= 32 || column >= width) return;
  for (int w = 1; w < kWarps; ++w) sum += warp_sums[w * 32 + static_cast<int>(threadIdx.x)];
  sums[column] = static_cast<float>(sum);
}

}  // namespace mortise::cuda
