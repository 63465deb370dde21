// What a decoding step computes between its matrix products, all in float32: norms, gates, the rotation of queries and keys,
// and attention over keys and values in pages (Kwon et al. 2023) whose tokens are split among blocks (Dao et al. 2023).
//
// A page has kPageTokens tokens, [kv heads, tokens, D], in float32 or bfloat16. Row r of the block table names the pages of
// sample r. Positions are on the device, so no size of a launch depends on what was sampled.
// Cost: attention reads keys and values once for each query head; query heads that share them meet in the L2 cache.
#pragma once

#include "cuda/kernels/dialect.cuh"
#include "cuda/module.h"

namespace mortise::cuda {

constexpr int kPageTokens = MORTISE_CUDA_PAGE_TOKENS;
constexpr int kSplitTokens = MORTISE_CUDA_SPLIT_TOKENS;  // tokens of one block of attention

__device__ inline float number_of(float value) { return value; }
__device__ inline float number_of(uint16_t bits) {
  union {
    uint32_t bits;
    float number;
  } it = {uint32_t{bits} << 16};
  return it.number;
}
__device__ inline void store(float value, float* place) { *place = value; }
__device__ inline void store(float value, uint16_t* place) { *place = bfloat16_of(value); }
__device__ inline float rounded(float value, bool rounds) { return rounds ? number_of(bfloat16_of(value)) : value; }

// One block per row. `added` is null, or becomes part of the row first: sum = x + added.
__global__ void __launch_bounds__(kThreads)
    rms_norm_kernel(const float* __restrict__ x, const float* __restrict__ added, const float* __restrict__ weight,
                    float eps, int64_t width, float* sum, float* out) {
  const int64_t begin = blockIdx.x * width;
  double squares = 0;
  for (int64_t i = threadIdx.x; i < width; i += kThreads) {
    const float value = added != nullptr ? x[begin + i] + added[begin + i] : x[begin + i];
    if (added != nullptr) sum[begin + i] = value;
    squares += static_cast<double>(value) * static_cast<double>(value);
  }
  const double mean = block_sum(squares) / static_cast<double>(width);
  const float factor = static_cast<float>(1.0 / sqrt(mean + static_cast<double>(eps)));
  for (int64_t i = threadIdx.x; i < width; i += kThreads) {
    const float value = added != nullptr ? sum[begin + i] : x[begin + i];
    out[begin + i] = value * factor * weight[i];
  }
}

// In place, one warp per head: the norms of queries and keys before their rotation.
__global__ void __launch_bounds__(kThreads)
    head_norm_kernel(float* qkv, int64_t num_heads_in_all, MortiseCudaHeads heads, const float* __restrict__ q_weight,
                     const float* __restrict__ k_weight, float eps) {
  const int64_t index = int64_t{blockIdx.x} * kWarps + threadIdx.x / 32;
  if (index >= num_heads_in_all) return;  // a whole warp
  const int64_t each = heads.num_heads + heads.num_kv_heads;
  const int64_t head = index % each;
  const int dim = heads.head_dim;
  float* const x = qkv + index / each * (heads.num_heads + 2 * heads.num_kv_heads) * dim + head * dim;
  const float* const weight = head < heads.num_heads ? q_weight : k_weight;
  float squares = 0;
  for (int d = static_cast<int>(threadIdx.x % 32); d < dim; d += 32) squares += x[d] * x[d];
  const float factor = 1.0F / sqrtf(warp_sum(squares) / static_cast<float>(dim) + eps);
  for (int d = static_cast<int>(threadIdx.x % 32); d < dim; d += 32) x[d] = x[d] * factor * weight[d];
}

// out = silu(gate) * up of rows [gate, up].
__global__ void __launch_bounds__(kThreads)
    silu_kernel(const float* __restrict__ gate_up, int64_t num_rows, int64_t width, float* out) {
  const int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (i >= num_rows * width) return;
  const int64_t row = i / width, column = i % width;
  const float gate = gate_up[row * 2 * width + column];
  out[i] = gate / (1.0F + expf(-gate)) * gate_up[row * 2 * width + width + column];
}

// One block per row. Rotates q and k in place (layers/rope.h: pairs d and d + half) and writes k and v at the row's position.
template <class T>
__global__ void __launch_bounds__(kThreads)
    rope_write_kernel(float* qkv, MortiseCudaHeads heads, const float* __restrict__ cosines,
                      const float* __restrict__ sines, int32_t half, const int64_t* __restrict__ positions,
                      const int32_t* __restrict__ table, int64_t table_stride, T* keys, T* values) {
  const int dim = heads.head_dim, rotated = heads.num_heads + heads.num_kv_heads;
  float* const row = qkv + int64_t{blockIdx.x} * (rotated + heads.num_kv_heads) * dim;
  const int64_t position = positions[blockIdx.x];
  const int64_t page = table[blockIdx.x * table_stride + position / kPageTokens];
  const auto place = [&](int head, int d) {
    return ((page * heads.num_kv_heads + head) * kPageTokens + position % kPageTokens) * dim + d;
  };
  for (int i = static_cast<int>(threadIdx.x); i < rotated * half; i += kThreads) {
    const int head = i / half, d = i % half;
    const float c = cosines[position * half + d], s = sines[position * half + d];
    float* const x = row + head * dim;
    const float a = x[d], b = x[d + half];
    x[d] = a * c - b * s;
    x[d + half] = b * c + a * s;
    if (head < heads.num_heads) continue;
    store(x[d], keys + place(head - heads.num_heads, d));
    store(x[d + half], keys + place(head - heads.num_heads, d + half));
  }
  const int rest = dim - 2 * half;  // dimensions that are not rotated
  for (int i = static_cast<int>(threadIdx.x); i < heads.num_kv_heads * rest; i += kThreads) {
    const int head = i / rest, d = 2 * half + i % rest;
    store(row[(heads.num_heads + head) * dim + d], keys + place(head, d));
  }
  for (int i = static_cast<int>(threadIdx.x); i < heads.num_kv_heads * dim; i += kThreads)
    store(row[rotated * dim + i], values + place(i / dim, i % dim));
}

// One block per (row, query head, split). A warp takes every eighth token of the split; the block adds what its warps have.
// A split is [D + 2] floats: the largest score, the sum of exp(score - largest), and the values' sum with these weights.
// kPerLane: numbers of a head in one lane, at least D / 32.
template <class T, int kPerLane>
__global__ void __launch_bounds__(kThreads)
    attention_split_kernel(const float* __restrict__ qkv, MortiseCudaHeads heads, MortiseCudaScores scores,
                           const int64_t* __restrict__ positions, const int32_t* __restrict__ table,
                           int64_t table_stride, const T* __restrict__ keys, const T* __restrict__ values,
                           int32_t num_splits, float* splits) {
  MORTISE_SHARED(float, maxima, kWarps);
  MORTISE_SHARED(float, sums, kWarps);
  MORTISE_SHARED(float, weighted, kWarps* kPerLane * 32);
  const int dim = heads.head_dim, lane = static_cast<int>(threadIdx.x % 32), warp = static_cast<int>(threadIdx.x / 32);
  const int split = static_cast<int>(blockIdx.x % static_cast<unsigned>(num_splits));
  const int64_t row_head = blockIdx.x / static_cast<unsigned>(num_splits);
  const int64_t row = row_head / heads.num_heads;
  const int head = static_cast<int>(row_head % heads.num_heads);
  const int kv_head = head / (heads.num_heads / heads.num_kv_heads);
  const int64_t end = positions[row] + 1;
  int64_t first = scores.window > 0 && end > scores.window ? end - scores.window : 0;
  first = first > int64_t{split} * kSplitTokens ? first : int64_t{split} * kSplitTokens;
  const int64_t last = end < int64_t{split + 1} * kSplitTokens ? end : int64_t{split + 1} * kSplitTokens;
  const float* const q = qkv + (row * (heads.num_heads + 2 * heads.num_kv_heads) + head) * dim;
  float query[kPerLane], sum_of_values[kPerLane];
  for (int e = 0; e < kPerLane; ++e) {
    query[e] = lane + 32 * e < dim ? rounded(q[lane + 32 * e], scores.rounds != 0) : 0.0F;
    sum_of_values[e] = 0.0F;
  }
  float max = -INFINITY, sum = 0.0F;
  for (int64_t t = first + warp; t < last; t += kWarps) {
    const int64_t page = table[row * table_stride + t / kPageTokens];
    const int64_t at = ((page * heads.num_kv_heads + kv_head) * kPageTokens + t % kPageTokens) * dim;
    float score = 0.0F;
    for (int e = 0; e < kPerLane; ++e)
      if (lane + 32 * e < dim) score += query[e] * number_of(keys[at + lane + 32 * e]);
    score = warp_sum(score) * scores.scale;
    if (scores.softcap > 0.0F) score = scores.softcap * tanhf(score / scores.softcap);
    const float larger = fmaxf(max, score), kept = expf(max - larger), weight = expf(score - larger);
    for (int e = 0; e < kPerLane; ++e) {
      const float value = lane + 32 * e < dim ? number_of(values[at + lane + 32 * e]) : 0.0F;
      sum_of_values[e] = sum_of_values[e] * kept + weight * value;
    }
    sum = sum * kept + weight;
    max = larger;
  }
  if (lane == 0) {
    maxima[warp] = max;
    sums[warp] = sum;
  }
  for (int e = 0; e < kPerLane; ++e) weighted[(warp * kPerLane + e) * 32 + lane] = sum_of_values[e];
  __syncthreads();
  float most = -INFINITY, total = 0.0F;
  for (int w = 0; w < kWarps; ++w) most = fmaxf(most, maxima[w]);
  float* const out = splits + blockIdx.x * int64_t{dim + 2};
  if (first >= last) {  // no token of this split is seen
    if (threadIdx.x == 0) out[0] = -INFINITY, out[1] = 0.0F;
    return;
  }
  for (int w = 0; w < kWarps; ++w) total += sums[w] * expf(maxima[w] - most);
  if (threadIdx.x == 0) out[0] = most, out[1] = total;
  for (int d = static_cast<int>(threadIdx.x); d < dim; d += kThreads) {
    float value = 0.0F;
    for (int w = 0; w < kWarps; ++w) value += weighted[(w * kPerLane + d / 32) * 32 + d % 32] * expf(maxima[w] - most);
    out[2 + d] = value;
  }
}

// One warp per (row, query head): adds the splits in their order, and the head's sink.
__global__ void __launch_bounds__(kThreads)
    attention_merge_kernel(const float* __restrict__ splits, int64_t num_row_heads, MortiseCudaHeads heads,
                           MortiseCudaScores scores, const float* __restrict__ sinks, int32_t num_splits, float* out) {
  const int64_t index = int64_t{blockIdx.x} * kWarps + threadIdx.x / 32;
  if (index >= num_row_heads) return;
  const int dim = heads.head_dim;
  const float* const parts = splits + index * num_splits * (dim + 2);
  float most = sinks != nullptr ? sinks[index % heads.num_heads] : -INFINITY;
  for (int s = 0; s < num_splits; ++s) most = fmaxf(most, parts[s * (dim + 2)]);
  float total = sinks != nullptr ? expf(sinks[index % heads.num_heads] - most) : 0.0F;
  for (int s = 0; s < num_splits; ++s) total += parts[s * (dim + 2) + 1] * expf(parts[s * (dim + 2)] - most);
  for (int d = static_cast<int>(threadIdx.x % 32); d < dim; d += 32) {
    float value = 0.0F;
    for (int s = 0; s < num_splits; ++s) {
      const float* const part = parts + s * (dim + 2);
      if (part[1] > 0.0F) value += part[2 + d] * expf(part[0] - most);
    }
    out[index * dim + d] = rounded(value / total, scores.rounds != 0);
  }
}

}  // namespace mortise::cuda
