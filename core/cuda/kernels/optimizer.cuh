// The norm of all gradients, the factor that clips it, and AdamW on float32 masters with bfloat16 copies. The factor stays
// on the device: no step waits for the host. Sums have a fixed order, so two runs give the same bits.
#pragma once

#include "cuda/kernels/dialect.cuh"
#include "cuda/module.h"

namespace mortise::cuda {

// One block for each part of kMortiseCudaNormPart gradients; partial[first_partial + block] gets its sum of squares.
__global__ void __launch_bounds__(kThreads)
    square_sum_kernel(const float* __restrict__ gradient, int64_t count, double* partial) {
  const int64_t begin = int64_t{blockIdx.x} * MORTISE_CUDA_NORM_PART;
  const int64_t end = begin + MORTISE_CUDA_NORM_PART < count ? begin + MORTISE_CUDA_NORM_PART : count;
  double sum = 0;
  for (int64_t i = begin + threadIdx.x; i < end; i += kThreads) sum += double(gradient[i]) * double(gradient[i]);
  sum = block_sum(sum);
  if (threadIdx.x == 0) partial[blockIdx.x] = sum;
}

// clip: {norm, factor}. The factor is max_norm / (norm + 1e-6) where that is below 1, and 0 if the norm is not finite:
// AdamW then changes nothing.
__global__ void __launch_bounds__(kThreads)
    clip_kernel(const double* __restrict__ partial, int64_t count, float max_norm, float* clip) {
  double sum = 0;
  for (int64_t i = threadIdx.x; i < count; i += kThreads) sum += partial[i];
  const double norm = sqrt(block_sum(sum));
  if (threadIdx.x != 0) return;
  const double factor = double(max_norm) / (norm + 1e-6);
  clip[0] = float(norm);
  clip[1] = !(norm < INFINITY) ? 0.0F : max_norm > 0.0F && factor < 1.0 ? float(factor) : 1.0F;
}

__global__ void __launch_bounds__(kThreads)
    adamw_kernel(MortiseCudaAdamW s, int64_t count, const float* __restrict__ clip, const float* __restrict__ gradient,
                 float* master, float* exp_avg, float* exp_avg_sq, uint16_t* weights) {
  const int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (i >= count) return;
  const float factor = clip[1];
  if (factor == 0.0F) return;  // the gradients are not finite
  const float g = gradient[i] * factor;
  const float m = exp_avg[i] * s.beta1 + (1.0F - s.beta1) * g;
  const float v = exp_avg_sq[i] * s.beta2 + (1.0F - s.beta2) * g * g;
  const float p =
      master[i] * (1.0F - s.lr * s.weight_decay) - s.lr / s.correction1 * (m / (sqrtf(v) / s.correction2_root + s.eps));
  exp_avg[i] = m;
  exp_avg_sq[i] = v;
  master[i] = p;
  weights[i] = bfloat16_of(p);
}

}  // namespace mortise::cuda
