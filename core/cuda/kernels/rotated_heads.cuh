// What attention in training reads of the rows of qkv: queries, keys and values as tensors of their own, in the number format
// of attention. They get their bias, if the family has one, or queries and keys are normed, and these are rotated
// (core/model/layers/rope.h). A key of a shared prompt is written once for each sequence that reads it, and backward adds the
// gradients of these copies in float32.
//
// One warp takes one head of one row. Sums have a fixed order that depends on the number of rows alone.
#pragma once

#include "cuda/kernels/dialect.cuh"
#include "cuda/module.h"

namespace mortise::cuda {

// 1 / sqrt(mean(x^2) + eps) of a head, in all lanes.
__device__ inline float head_factor(const float* x, int dim, float eps) {
  float squares = 0;
  for (int d = static_cast<int>(threadIdx.x % 32); d < dim; d += 32) squares += x[d] * x[d];
  return 1.0F / sqrtf(warp_sum(squares) / static_cast<float>(dim) + eps);
}

// A head of q, k or v.
template <class T>
struct HeadPlace {
  int64_t row;  // in qkv
  int head;     // among all in this row
  T* out;
};

// The head that a warp writes: all of q come first, then those of keys and values by their rows. `index` is below
// num_rows num_heads + 2 num_keys num_kv_heads.
template <class T>
__device__ inline HeadPlace<T> head_of_warp(int64_t index, int64_t num_rows, const MortiseCudaHeads& heads,
                                            const int32_t* sources, T* q, T* k, T* v) {
  const int64_t of_queries = num_rows * heads.num_heads;
  if (index < of_queries)
    return {index / heads.num_heads, static_cast<int>(index % heads.num_heads), q + index * heads.head_dim};
  const int64_t place = (index - of_queries) / (2 * heads.num_kv_heads);
  const int own = static_cast<int>((index - of_queries) % (2 * heads.num_kv_heads));
  const bool is_value = own >= heads.num_kv_heads;
  T* const out =
      (is_value ? v : k) + (place * heads.num_kv_heads + (is_value ? own - heads.num_kv_heads : own)) * heads.head_dim;
  return {sources != nullptr ? sources[place] : place, heads.num_heads + own, out};
}

template <class T>
__global__ void __launch_bounds__(kThreads, 4)
    rotate_heads_kernel(const float* __restrict__ qkv, const float* __restrict__ bias, int64_t num_rows,
                        MortiseCudaHeads heads, MortiseCudaHeadNorms norms, MortiseCudaRotation rotation,
                        const int32_t* __restrict__ sources, int64_t num_in_all, T* q, T* k, T* v) {
  const int64_t index = int64_t{blockIdx.x} * kWarps + threadIdx.x / 32;
  if (index >= num_in_all) return;  // a whole warp
  const HeadPlace<T> it = head_of_warp(index, num_rows, heads, sources, q, k, v);
  const int lane = static_cast<int>(threadIdx.x % 32), dim = heads.head_dim, half = rotation.half;
  const float* const x = qkv + (it.row * (heads.num_heads + 2 * heads.num_kv_heads) + it.head) * dim;
  const auto biased = [&](int d) { return bias != nullptr ? x[d] + bias[it.head * dim + d] : x[d]; };
  if (it.head >= heads.num_heads + heads.num_kv_heads) {
    for (int d = lane; d < dim; d += 32) store(biased(d), it.out + d);
    return;
  }
  const float* const weight = it.head < heads.num_heads ? norms.q_weight : norms.k_weight;
  const float factor = weight != nullptr ? head_factor(x, dim, norms.eps) : 1.0F;
  const auto normed = [&](int d) { return weight != nullptr ? x[d] * factor * weight[d] : biased(d); };
  for (int p = lane; p < half; p += 32) {
    const float c = rotation.cosines[it.row * half + p], s = rotation.sines[it.row * half + p];
    const float a = normed(p), b = normed(p + half);
    store(a * c - b * s, it.out + p);
    store(b * c + a * s, it.out + p + half);
  }
  for (int d = 2 * half + lane; d < dim; d += 32) store(normed(d), it.out + d);
}

// The gradient of number d of a head by what attention read of it: of a key or a value, the sum over its copies.
template <class T>
struct HeadGradient {
  const T* d_out;  // number 0 of this head in the rows of q, k or v
  int64_t stride;  // from row to row
  const int32_t* places;
  int64_t first, end;  // its copies; without places one row

  __device__ float operator()(int d) const {
    if (places == nullptr) return number_of(d_out[first * stride + d]);
    float sum = 0;
    for (int64_t i = first; i < end; ++i) sum += number_of(d_out[places[i] * stride + d]);
    return sum;
  }
};

template <class T>
__device__ inline HeadGradient<T> head_gradient(int64_t row, int head, const MortiseCudaHeads& heads,
                                                const MortiseCudaCopies& copies, const T* dq, const T* dk,
                                                const T* dv) {
  const int dim = heads.head_dim, own = head - heads.num_heads;
  if (own < 0) return {dq + head * dim, int64_t{heads.num_heads} * dim, nullptr, row, row + 1};
  const T* const d_out = own < heads.num_kv_heads ? dk + own * dim : dv + (own - heads.num_kv_heads) * dim;
  const int64_t stride = int64_t{heads.num_kv_heads} * dim;
  if (copies.places == nullptr) return {d_out, stride, nullptr, row, row + 1};
  return {d_out, stride, copies.places, copies.begins[row], copies.begins[row + 1]};
}

// The numbers of a head in pairs: those that are rotated together, and behind them the others, half of them each. A head with a
// norm has an even number of them.
struct HeadPair {
  int first, second;
  bool rotates;
};

__device__ inline HeadPair head_pair(int pair, int dim, int half) {
  if (pair < half) return {pair, pair + half, true};
  return {pair + half, pair + dim / 2, false};
}

// The gradients of a pair before its rotation.
template <class T>
__device__ inline void rotate_back(const HeadGradient<T>& gradient, const MortiseCudaRotation& rotation, int64_t row,
                                   const HeadPair& pair, float& first, float& second) {
  const float a = gradient(pair.first), b = gradient(pair.second);
  const int64_t place = row * rotation.half + pair.first;
  const float c = pair.rotates ? rotation.cosines[place] : 1.0F, s = pair.rotates ? rotation.sines[place] : 0.0F;
  first = a * c + b * s;
  second = b * c - a * s;
}

// Pairs of a norm's weight that a lane adds up: those of a head of at most 64 kPairs numbers.
template <int kPairs>
struct PairSums {
  float first[kPairs] = {}, second[kPairs] = {};
};

// A head with a norm. Adds to the gradient of the norm's weight.
template <class T, int kPairs>
__device__ inline void normed_head_backward(const HeadGradient<T>& gradient, const MortiseCudaRotation& rotation,
                                            int64_t row, int dim, const float* x, const float* weight, float eps,
                                            float* dx, PairSums<kPairs>& sums) {
  const int lane = static_cast<int>(threadIdx.x % 32);
  const float factor = head_factor(x, dim, eps);
  float first[kPairs], second[kPairs], dot = 0;
  MORTISE_UNROLL
  for (int j = 0; j < kPairs; ++j) {
    first[j] = second[j] = 0;
    if (lane + 32 * j >= dim / 2) continue;
    const HeadPair pair = head_pair(lane + 32 * j, dim, rotation.half);
    rotate_back(gradient, rotation, row, pair, first[j], second[j]);
    sums.first[j] += first[j] * x[pair.first] * factor;
    sums.second[j] += second[j] * x[pair.second] * factor;
    first[j] *= weight[pair.first];
    second[j] *= weight[pair.second];
    dot += first[j] * x[pair.first] + second[j] * x[pair.second];
  }
  const float shift = warp_sum(dot) / static_cast<float>(dim) * factor * factor;
  MORTISE_UNROLL
  for (int j = 0; j < kPairs; ++j) {
    if (lane + 32 * j >= dim / 2) continue;
    const HeadPair pair = head_pair(lane + 32 * j, dim, rotation.half);
    dx[pair.first] = factor * (first[j] - x[pair.first] * shift);
    dx[pair.second] = factor * (second[j] - x[pair.second] * shift);
  }
}

template <class T>
__device__ inline void plain_head_backward(const HeadGradient<T>& gradient, const MortiseCudaRotation& rotation,
                                           int64_t row, int dim, bool is_value, float* dx) {
  const int lane = static_cast<int>(threadIdx.x % 32), half = is_value ? 0 : rotation.half;
  for (int p = lane; p < half; p += 32) {
    float first, second;
    rotate_back(gradient, rotation, row, {p, p + half, true}, first, second);
    dx[p] = first;
    dx[p + half] = second;
  }
  for (int d = 2 * half + lane; d < dim; d += 32) dx[d] = gradient(d);
}

// All rows of a block for one head without a norm. Adds up what they add to the gradient of its bias. A lane has the numbers of a
// head in the order in which it computes them: those of a pair, and then the others.
template <class T, int kPairs>
__device__ inline void biased_head_backward(const MortiseCudaRotation& rotation, const MortiseCudaHeads& heads,
                                            const MortiseCudaCopies& copies, const T* dq, const T* dk, const T* dv,
                                            int64_t first_row, int count, int head, float* d_qkv, float* sums_of_head) {
  constexpr int kOthers = 2 * kPairs;
  const int dim = heads.head_dim, all = heads.num_heads + 2 * heads.num_kv_heads;
  const int lane = static_cast<int>(threadIdx.x % 32);
  const int half = head >= heads.num_heads + heads.num_kv_heads ? 0 : rotation.half;
  PairSums<kPairs> pairs;
  float others[kOthers] = {};
  for (int64_t row = first_row; row < first_row + count; ++row) {
    const HeadGradient<T> gradient = head_gradient(row, head, heads, copies, dq, dk, dv);
    float* const dx = d_qkv + (row * all + head) * dim;
    MORTISE_UNROLL
    for (int j = 0; j < kPairs; ++j) {
      const int p = lane + 32 * j;
      if (p >= half) continue;
      float first, second;
      rotate_back(gradient, rotation, row, {p, p + half, true}, first, second);
      pairs.first[j] += dx[p] = first;
      pairs.second[j] += dx[p + half] = second;
    }
    MORTISE_UNROLL
    for (int j = 0; j < kOthers; ++j) {
      const int d = 2 * half + lane + 32 * j;
      if (d < dim) others[j] += dx[d] = gradient(d);
    }
  }
  MORTISE_UNROLL
  for (int j = 0; j < kPairs; ++j) {
    const int p = lane + 32 * j;
    if (p < half) sums_of_head[p] = pairs.first[j], sums_of_head[p + half] = pairs.second[j];
  }
  MORTISE_UNROLL
  for (int j = 0; j < kOthers; ++j) {
    const int d = 2 * half + lane + 32 * j;
    if (d < dim) sums_of_head[d] = others[j];
  }
}

// Heads without norms, of at most 64 kPairs numbers, with the gradient of their bias: part_sums [blocks, numbers of a row of qkv]
// gets what the MORTISE_CUDA_NORM_ROWS rows of each block add to it. A warp takes every kWarps-th head.
template <class T, int kPairs>
__global__ void __launch_bounds__(kThreads, kPairs > 2 ? 2 : 3)
    biased_heads_backward_kernel(int64_t num_rows, MortiseCudaHeads heads, MortiseCudaRotation rotation,
                                 MortiseCudaCopies copies, const T* __restrict__ dq, const T* __restrict__ dk,
                                 const T* __restrict__ dv, float* d_qkv, float* part_sums) {
  const int64_t first = int64_t{blockIdx.x} * MORTISE_CUDA_NORM_ROWS;
  const int count =
      static_cast<int>(num_rows - first < MORTISE_CUDA_NORM_ROWS ? num_rows - first : MORTISE_CUDA_NORM_ROWS);
  const int all = heads.num_heads + 2 * heads.num_kv_heads;
  for (int head = static_cast<int>(threadIdx.x / 32); head < all; head += kWarps)
    biased_head_backward<T, kPairs>(rotation, heads, copies, dq, dk, dv, first, count, head, d_qkv,
                                    part_sums + (int64_t{blockIdx.x} * all + head) * heads.head_dim);
}

// A block takes MORTISE_CUDA_NORM_ROWS rows. Heads with norms have at most 64 kPairs numbers, and part_sums
// [blocks, 2, head_dim] gets what these rows add to the gradients of the weights of q and of k. Without norms kPairs is 0.
template <class T, int kPairs>
__global__ void __launch_bounds__(kThreads, kPairs > 2   ? 2
                                            : kPairs > 0 ? 3
                                                         : 4)
    rotate_heads_backward_kernel(const float* __restrict__ qkv, int64_t num_rows, MortiseCudaHeads heads,
                                 MortiseCudaHeadNorms norms, MortiseCudaRotation rotation, MortiseCudaCopies copies,
                                 const T* __restrict__ dq, const T* __restrict__ dk, const T* __restrict__ dv,
                                 float* d_qkv, float* part_sums) {
  const int64_t first = int64_t{blockIdx.x} * MORTISE_CUDA_NORM_ROWS;
  const int count =
      static_cast<int>(num_rows - first < MORTISE_CUDA_NORM_ROWS ? num_rows - first : MORTISE_CUDA_NORM_ROWS);
  const int all = heads.num_heads + 2 * heads.num_kv_heads, dim = heads.head_dim;
  const int warp = static_cast<int>(threadIdx.x / 32), lane = static_cast<int>(threadIdx.x % 32);
  PairSums<(kPairs > 0 ? kPairs : 1)> q_sums, k_sums;
  for (int item = warp; item < count * all; item += kWarps) {
    const int64_t row = first + item / all;
    const int head = item % all;
    const int64_t begin = (row * all + head) * dim;
    const HeadGradient<T> gradient = head_gradient(row, head, heads, copies, dq, dk, dv);
    const bool is_value = head >= heads.num_heads + heads.num_kv_heads;
    if (kPairs == 0 || is_value)
      plain_head_backward(gradient, rotation, row, dim, is_value, d_qkv + begin);
    else if (head < heads.num_heads)
      normed_head_backward(gradient, rotation, row, dim, qkv + begin, norms.q_weight, norms.eps, d_qkv + begin, q_sums);
    else
      normed_head_backward(gradient, rotation, row, dim, qkv + begin, norms.k_weight, norms.eps, d_qkv + begin, k_sums);
  }
  if constexpr (kPairs > 0) {
    MORTISE_SHARED(float, warp_sums, kWarps * 2 * MORTISE_CUDA_MOST_HEAD_DIM);
    MORTISE_UNROLL
    for (int j = 0; j < kPairs; ++j) {
      if (lane + 32 * j >= dim / 2) continue;
      const HeadPair pair = head_pair(lane + 32 * j, dim, rotation.half);
      warp_sums[2 * warp * dim + pair.first] = q_sums.first[j];
      warp_sums[2 * warp * dim + pair.second] = q_sums.second[j];
      warp_sums[(2 * warp + 1) * dim + pair.first] = k_sums.first[j];
      warp_sums[(2 * warp + 1) * dim + pair.second] = k_sums.second[j];
    }
    __syncthreads();
    for (int i = static_cast<int>(threadIdx.x); i < 2 * dim; i += kThreads) {
      float sum = 0;
      for (int w = 0; w < kWarps; ++w) sum += warp_sums[2 * w * dim + i];
      part_sums[blockIdx.x * int64_t{2} * dim + i] = sum;
    }
  }
}

}  // namespace mortise::cuda
