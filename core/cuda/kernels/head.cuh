// Log-prob of the target token and entropy, from logits that come in chunks of the vocabulary (float32). One block per row.
//
// With d = (logit - max) / temperature a row's state holds max, sum of exp d, sum of d exp d (RowStats of
// core/model/head/row_softmax.h) and the target's logit. Cost: each logit is read once forward, and read and written
// once backward.
#pragma once

#include "cuda/kernels/dialect.cuh"
#include "cuda/module.h"

namespace mortise::cuda {

// Adds the state (max2, sum2, weighted2) to the first one.
__device__ inline void merge_stats(float& max, float& sum, float& weighted, float max2, float sum2, float weighted2,
                                   float inverse_temperature) {
  if (max2 > max) {
    float kept = max;
    max = max2, max2 = kept;
    kept = sum, sum = sum2, sum2 = kept;
    kept = weighted, weighted = weighted2, weighted2 = kept;
  }
  if (!(sum2 > 0.0F)) return;  // nothing there, or all of it at -inf
  const float shift = (max2 - max) * inverse_temperature;
  const float scale = expf(shift);
  sum += scale * sum2;
  weighted += scale * (weighted2 + (shift > -1e4F ? shift : -1e4F) * sum2);
}

__global__ void __launch_bounds__(kThreads)
    head_chunk_kernel(const float* __restrict__ logits, int64_t stride, int64_t first, int64_t columns,
                      const int64_t* __restrict__ target, float inverse_temperature, MortiseCudaHeadRow* rows) {
  MORTISE_SHARED(float, maxima, kWarps);
  MORTISE_SHARED(float, sums, kWarps);
  MORTISE_SHARED(float, weighted_sums, kWarps);
  const float* const row = logits + blockIdx.x * stride;
  float max = -INFINITY, sum = 0.0F, weighted = 0.0F;
  for (int64_t i = threadIdx.x; i < columns; i += kThreads)
    merge_stats(max, sum, weighted, row[i], row[i] > -INFINITY ? 1.0F : 0.0F, 0.0F, inverse_temperature);
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
  if (at >= 0 && at < columns) state.target_logit = row[at];
  rows[blockIdx.x] = state;
}

__global__ void __launch_bounds__(kThreads)
    head_finish_kernel(const MortiseCudaHeadRow* __restrict__ rows, int64_t num_rows, float inverse_temperature,
                       float* log_prob, float* entropy) {
  const int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (i >= num_rows) return;
  const float log_sum = logf(rows[i].sum);
  log_prob[i] = (rows[i].target_logit - rows[i].max) * inverse_temperature - log_sum;
  entropy[i] = log_sum - rows[i].weighted / rows[i].sum;
}

// In place: the gradient of g * log_prob + h * entropy with respect to the logits.
__global__ void __launch_bounds__(kThreads)
    head_backward_kernel(float* logits, int64_t stride, int64_t first, int64_t columns,
                         const int64_t* __restrict__ target, float inverse_temperature,
                         const MortiseCudaHeadRow* __restrict__ rows, const float* __restrict__ grad_log_prob,
                         const float* __restrict__ grad_entropy) {
  const MortiseCudaHeadRow state = rows[blockIdx.x];
  const float g = grad_log_prob[blockIdx.x], h = grad_entropy[blockIdx.x];
  // log p + H = d - weighted / sum
  const float base = g - h * state.weighted / state.sum;
  const int64_t at = target[blockIdx.x] - first;
  float* const row = logits + blockIdx.x * stride;
  for (int64_t i = threadIdx.x; i < columns; i += kThreads) {
    float d = (row[i] - state.max) * inverse_temperature;
    d = d > -1e4F ? d : -1e4F;
    const float p = expf(d) / state.sum;
    row[i] = ((i == at ? g : 0.0F) - p * (base + h * d)) * inverse_temperature;
  }
}

}  // namespace mortise::cuda
