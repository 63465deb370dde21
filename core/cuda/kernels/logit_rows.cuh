// What the kernels of the sampler compute of a row of logits together: sums, and the largest logit.
#pragma once

#include "cuda/kernels/dialect.cuh"
#include "cuda/module.h"

namespace mortise::cuda {

// As block_sum, and may be called again.
__device__ inline double block_total(double value) {
  const double sum = block_sum(value);
  __syncthreads();
  return sum;
}

// The first logit behind (best, place) in the order from the largest to the least, by id among equals; -INFINITY at `vocab` if
// there is none. May be called again.
__device__ inline void best_behind(const float* row, int32_t vocab, float& best, int32_t& place) {
  MORTISE_SHARED(float, values, kWarps);
  MORTISE_SHARED(int32_t, places, kWarps);
  const float last = best;
  const int32_t last_place = place;
  best = -INFINITY;
  place = vocab;
  for (int32_t i = static_cast<int32_t>(threadIdx.x); i < vocab; i += kThreads) {
    if (row[i] > last || (row[i] == last && i <= last_place)) continue;
    if (row[i] > best || (row[i] == best && i < place)) best = row[i], place = i;
  }
  for (int mask = 16; mask > 0; mask /= 2) {
    const float other = __shfl_xor_sync(0xffffffffU, best, mask);
    const int32_t at = __shfl_xor_sync(0xffffffffU, place, mask);
    if (other > best || (other == best && at < place)) best = other, place = at;
  }
  if (threadIdx.x % 32 == 0) values[threadIdx.x / 32] = best, places[threadIdx.x / 32] = place;
  __syncthreads();
  for (int w = 0; w < kWarps; ++w) {
    const float other = values[w];
    const int32_t at = places[w];
    if (other > best || (other == best && at < place)) best = other, place = at;
  }
  __syncthreads();
}

// The largest logit and the lowest id that has it.
__device__ inline void best_of(const float* row, int32_t vocab, float& best, int32_t& place) {
  best = INFINITY;
  place = -1;
  best_behind(row, vocab, best, place);
}

}  // namespace mortise::cuda
