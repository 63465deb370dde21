// Log-prob of the target token and entropy, from logits that come in chunks of the vocabulary (float32). One block per
// row.
//
// With d = (logit - max) / temperature a row's state holds max, sum of exp d, sum of d exp d (RowStats of
// core/model/head/row_softmax.h) and the target's logit. A capped head's logits are capped here. Cost: each logit is
// read once forward; backward reads it once and writes its gradient, in bfloat16 if products of bfloat16 follow.
#pragma once

#include "cuda/kernels/dialect.cuh"
#include "cuda/module.h"

namespace mortise::cuda {

__device__ inline float capped_logit(float logit, const MortiseCudaHeadScale& scale) {
  return scale.softcap > 0.0F ? scale.softcap * tanhf(logit / scale.softcap) : logit;
}

// Adds the state (max2, sum2, weighted2) to the first one.
__device__ inline void merge_stats(float& max, float& sum, float& weighted, float max2, float sum2, float weighted2,
                                   float inverse_temperature) {
  if (max2 > max) {
    float kept = max;
    max = max2, max2 = kept;
    kept = sum, sum = sum2, sum2 = kept;
    kept = weighted, weighted = weighted2, weighted2 = kept;
  }
  // The other part has no column, or all its logits are -inf. A NaN is not 0, so it reaches the sums.
  if (sum2 == 0.0F) return;
  const float shift = (max2 - max) * inverse_temperature;
  const float scale = expf(shift);
  sum += scale * sum2;
  weighted += scale * (weighted2 + (shift > -1e4F ? shift : -1e4F) * sum2);
}

__global__ void __launch_bounds__(kThreads)
    head_chunk_kernel(const float* __restrict__ logits, int64_t stride, int64_t first, int64_t columns,
                      const int64_t* __restrict__ target, MortiseCudaHeadScale scale, MortiseCudaHeadRow* rows) {
  MORTISE_SHARED(float, maxima, kWarps);
  MORTISE_SHARED(float, sums, kWarps);
  MORTISE_SHARED(float, weighted_sums, kWarps);
  const float* const row = logits + blockIdx.x * stride;
  const float inverse_temperature = scale.inverse_temperature;
  float max = -INFINITY, sum = 0.0F, weighted = 0.0F;
  for (int64_t i = threadIdx.x; i < columns; i += kThreads) {
    const float logit = capped_logit(row[i], scale);
    merge_stats(max, sum, weighted, logit, logit == -INFINITY ? 0.0F : 1.0F, 0.0F, inverse_temperature);
  }
  for (int mask = 16; mask > 0; mask /= 2) {
    const float max2 = __shfl_xor_sync(0xffffffffU, max, mask), sum2 = __shfl_xor_sync(0xffffffffU, sum, mask);
    const float weighted2 = __shfl_xor_sync(0xffffffffU, weighted, mask);
    merge_stats(max, sum, weighted, max2, sum2, weighted2, inverse_temperature);
  }
  if (threadIdx.x % 32 == 0) {
    maxima[threadIdx.x / 32] = max;
    sums[threadIdx.x / 32] = sum;
    weighted_sums[threadIdx.x / 32] = weighted;
  }
  __syncthreads();
  if (threadIdx.x != 0) return;
  MortiseCudaHeadRow state = {-INFINITY, 0.0F, 0.0F, -INFINITY};
  if (first > 0) state = rows[blockIdx.x];
  for (int w = 0; w < kWarps; ++w)
    merge_stats(state.max, state.sum, state.weighted, maxima[w], sums[w], weighted_sums[w], inverse_temperature);
  const int64_t at = target[blockIdx.x] - first;
  if (at >= 0 && at < columns) state.target_logit = capped_logit(row[at], scale);
  rows[blockIdx.x] = state;
}

__global__ void __launch_bounds__(kThreads)
    head_finish_kernel(const MortiseCudaHeadRow* __restrict__ rows, int64_t num_rows, MortiseCudaHeadScale scale,
                       double* numbers) {
  const int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (i >= num_rows) return;
  const double log_sum = log(double(rows[i].sum)), inverse_temperature = double(scale.inverse_temperature);
  numbers[i] = double(rows[i].max) * inverse_temperature + log_sum;
  numbers[num_rows + i] = (double(rows[i].target_logit) - double(rows[i].max)) * inverse_temperature - log_sum;
  numbers[2 * num_rows + i] = log_sum - double(rows[i].weighted) / double(rows[i].sum);
}

// The gradient of g * log_prob + h * entropy with respect to the logits, as they were before the cap. `out` has their places; for
// float32 it may be the same memory.
template <class T>
__global__ void __launch_bounds__(kThreads)
    head_backward_kernel(const float* logits, int64_t num_rows, int64_t stride, int64_t first, int64_t columns,
                         const int64_t* __restrict__ target, MortiseCudaHeadScale scale,
                         const MortiseCudaHeadRow* __restrict__ rows, const float* __restrict__ grads, T* out) {
  const MortiseCudaHeadRow state = rows[blockIdx.x];
  const float g = grads[blockIdx.x], h = grads[num_rows + blockIdx.x];
  // log p + H = d - weighted / sum
  const float base = g - h * state.weighted / state.sum;
  const int64_t at = target[blockIdx.x] - first;
  const float* const row = logits + blockIdx.x * stride;
  for (int64_t i = threadIdx.x; i < columns; i += kThreads) {
    const float logit = capped_logit(row[i], scale);
    float d = (logit - state.max) * scale.inverse_temperature;
    d = d < -1e4F ? -1e4F : d;  // NaN stays
    const float p = expf(d) / state.sum;
    float gradient = ((i == at ? g : 0.0F) - p * (base + h * d)) * scale.inverse_temperature;
    if (scale.softcap > 0.0F) gradient *= 1.0F - (logit / scale.softcap) * (logit / scale.softcap);
    store(gradient, out + blockIdx.x * stride + i);
  }
}

}  // namespace mortise::cuda
