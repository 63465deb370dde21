// The likeliest tokens of each row of logits with their log-probs, best first, the lower id first among equals. One block per
// row. Cost: a pass over the row for each token, and two more.
#pragma once

#include "cuda/kernels/edits.cuh"

namespace mortise::cuda {

__global__ void __launch_bounds__(kThreads)
    top_kernel(const float* __restrict__ logits, int64_t stride, int32_t vocab,
               const MortiseCudaDraw* __restrict__ draws, const int32_t* __restrict__ counts, int32_t num_top,
               MortiseCudaTop* top) {
  const int32_t count = counts[blockIdx.x] < vocab ? counts[blockIdx.x] : vocab;
  if (count == 0) return;  // the whole block
  const float* const row = logits + blockIdx.x * stride;
  const float inverse_temperature = draws[blockIdx.x].inverse_temperature;
  MortiseCudaTotal total = {0.0, 0.0F};
  float value = INFINITY;
  int32_t place = -1;
  for (int32_t t = 0; t < count; ++t) {
    best_behind(row, vocab, value, place);
    if (t == 0) {
      total.best = value;
      for (int32_t i = static_cast<int32_t>(threadIdx.x); i < vocab; i += kThreads)
        total.sum += static_cast<double>(expf((row[i] - value) * inverse_temperature));
      total.sum = block_total(total.sum);
    }
    if (threadIdx.x == 0)
      top[blockIdx.x * int64_t{num_top} + t] = {place < vocab ? place : 0,
                                                static_cast<float>(own_log_prob(value, inverse_temperature, total))};
  }
}

}  // namespace mortise::cuda
