// The norm of all gradients, the factor that clips it, and AdamW on float32 masters, with bfloat16 copies where there
// are any. One launch each for all tensors: a block has one part of one tensor. The factor stays on the device: no step
// waits for the host. Sums have a fixed order, so two runs give the same bits.
#pragma once

#include "cuda/kernels/dialect.cuh"
#include "cuda/module.h"

namespace mortise::cuda {

// The tensor of a part: the last one that begins at it or before it.
__device__ inline const MortiseCudaStepTensor& tensor_of_part(const MortiseCudaStepTensor* tensors, int64_t num_tensors,
                                                              int64_t part) {
  int64_t low = 0, high = num_tensors;
  while (high - low > 1) {
    const int64_t middle = (low + high) / 2;
    if (tensors[middle].first_part <= part)
      low = middle;
    else
      high = middle;
  }
  return tensors[low];
}

// Numbers [begin, end) of a tensor.
struct StepRange {
  int64_t begin, end;
};

__device__ inline StepRange range_of_part(int64_t part, int64_t count) {
  const int64_t begin = part * MORTISE_CUDA_STEP_PART, end = begin + MORTISE_CUDA_STEP_PART;
  return {begin, end < count ? end : count};
}

__global__ void __launch_bounds__(kThreads)
    square_sum_kernel(const MortiseCudaStepTensor* __restrict__ tensors, int64_t num_tensors, double* sums) {
  const MortiseCudaStepTensor& tensor = tensor_of_part(tensors, num_tensors, blockIdx.x);
  const int64_t part = int64_t{blockIdx.x} - tensor.first_part;
  const float* const gradient = tensor.gradient;
  const StepRange range = range_of_part(part, tensor.count);
  double sum = 0;
  for (int64_t i = range.begin + threadIdx.x; i < range.end; i += kThreads)
    sum += double(gradient[i]) * double(gradient[i]);
  sum = block_sum(sum);
  if (threadIdx.x == 0) sums[tensor.first_sum + part] = sum;
}

// clip: {norm, factor}. The factor is max_norm / (norm + 1e-6) where that is below 1. If the norm is not finite as a
// float, AdamW changes nothing.
__global__ void __launch_bounds__(kThreads)
    clip_kernel(const double* __restrict__ sums, int64_t count, float max_norm, float* clip) {
  double sum = 0;
  for (int64_t i = threadIdx.x; i < count; i += kThreads) sum += sums[i];
  const double norm = sqrt(block_sum(sum));
  if (threadIdx.x != 0) return;
  const double factor = double(max_norm) / (norm + 1e-6);
  clip[0] = float(norm);
  clip[1] = max_norm > 0.0F && factor < 1.0 ? float(factor) : 1.0F;
}

__global__ void __launch_bounds__(kThreads)
    adamw_kernel(MortiseCudaAdamW s, const MortiseCudaStepTensor* __restrict__ tensors, int64_t num_tensors,
                 const float* __restrict__ clip) {
  if (!(clip[0] < INFINITY)) return;
  const float factor = clip[1];
  const MortiseCudaStepTensor& t = tensor_of_part(tensors, num_tensors, blockIdx.x);
  const StepRange range = range_of_part(int64_t{blockIdx.x} - t.first_part, t.count);
  const float* const gradient = t.gradient + range.begin;
  float *const master = t.master + range.begin, *const exp_avg = t.exp_avg + range.begin,
               *const exp_avg_sq = t.exp_avg_sq + range.begin;
  uint16_t* const weights = t.weights == nullptr ? nullptr : t.weights + range.begin;
  const float kept = 1.0F - t.lr * t.weight_decay, size = t.lr / s.correction1, scale = 1.0F / s.correction2_root;
  const int count = static_cast<int>(range.end - range.begin);
  // A block with few registers has many neighbours, whose loads overlap.
  MORTISE_NO_UNROLL for (int i = static_cast<int>(threadIdx.x); i < count; i += kThreads) {
    const float g = gradient[i] * factor;
    const float m = exp_avg[i] * s.beta1 + s.rest1 * g;
    const float v = exp_avg_sq[i] * s.beta2 + s.rest2 * g * g;
    const float p = master[i] * kept - size * (m / (sqrtf(v) * scale + s.eps));
    exp_avg[i] = m;
    exp_avg_sq[i] = v;
    master[i] = p;
    if (weights != nullptr) weights[i] = bfloat16_of(p);
  }
}

}  // namespace mortise::cuda
