// What a decoding step computes between its matrix products, all in float32: norms, and the rotation of queries and keys.
// Results that a product of bfloat16 matrices reads are written in bfloat16. The gate is in gates.cuh.
// Attention is in attention.cuh, which also says what a page is.
#pragma once

#include "cuda/kernels/attention.cuh"

namespace mortise::cuda {

// One block per row. `added` is null, or becomes part of the row first: sum = x + added.
template <class T>
__global__ void __launch_bounds__(kThreads)
    rms_norm_kernel(const float* __restrict__ x, const float* __restrict__ added, const float* __restrict__ weight,
                    float eps, int64_t width, float* sum, T* out) {
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
    store(value * factor * weight[i], out + begin + i);
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

// One block per row. Adds the bias and rotates q and k (layers/rope.h: pairs d and d + half), all in place, and writes k and v
// at the row's position.
template <class T>
__global__ void __launch_bounds__(kThreads)
    rope_write_kernel(float* qkv, MortiseCudaHeads heads, const float* __restrict__ bias,
                      const float* __restrict__ cosines, const float* __restrict__ sines, int32_t half,
                      const int64_t* __restrict__ positions, const int32_t* __restrict__ table, int64_t table_stride,
                      T* keys, T* values) {
  const int dim = heads.head_dim, rotated = heads.num_heads + heads.num_kv_heads;
  float* const row = qkv + int64_t{blockIdx.x} * (rotated + heads.num_kv_heads) * dim;
  const int64_t position = positions[blockIdx.x];
  const int64_t page = table[blockIdx.x * table_stride + position / kPageTokens];
  const auto place = [&](int head, int d) {
    return ((page * heads.num_kv_heads + head) * kPageTokens + position % kPageTokens) * dim + d;
  };
  const auto biased = [&](int i) { return bias != nullptr ? row[i] + bias[i] : row[i]; };
  for (int i = static_cast<int>(threadIdx.x); i < rotated * half; i += kThreads) {
    const int head = i / half, d = i % half;
    const float c = cosines[position * half + d], s = sines[position * half + d];
    float* const x = row + head * dim;
    const float a = biased(head * dim + d), b = biased(head * dim + d + half);
    x[d] = a * c - b * s;
    x[d + half] = b * c + a * s;
    if (head < heads.num_heads) continue;
    store(x[d], keys + place(head - heads.num_heads, d));
    store(x[d + half], keys + place(head - heads.num_heads, d + half));
  }
  const int rest = dim - 2 * half;                                 // dimensions that are not rotated
  const int first = bias != nullptr ? 0 : heads.num_heads * rest;  // queries do not change without a bias
  for (int i = first + static_cast<int>(threadIdx.x); i < rotated * rest; i += kThreads) {
    const int head = i / rest, d = 2 * half + i % rest;
    const float value = biased(head * dim + d);
    if (bias != nullptr) row[head * dim + d] = value;
    if (head >= heads.num_heads) store(value, keys + place(head - heads.num_heads, d));
  }
  for (int i = static_cast<int>(threadIdx.x); i < heads.num_kv_heads * dim; i += kThreads) {
    const float value = biased(rotated * dim + i);
    if (bias != nullptr) row[rotated * dim + i] = value;
    store(value, values + place(i / dim, i % dim));
  }
}

}  // namespace mortise::cuda
