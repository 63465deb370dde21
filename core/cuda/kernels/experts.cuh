// A mixture of experts while it samples: the choice of experts, the tokens of each, the products with their matrices, and a
// token's sum. The host knows none of these numbers: every launch has the blocks that the worst case needs.
//
// A pair is a token and one of its experts: pair n K + k of token n. Rows of a product lie by pair, before it and behind it.
// A product is cut into tiles of rows that have the same expert.
#pragma once

#include "cuda/kernels/attention.cuh"

namespace mortise::cuda {

constexpr int kMostChosen = MORTISE_CUDA_MOST_EXPERTS_PER_TOKEN;

// One warp per token. The experts with the largest logits, the lower one first among equals; they are written in ascending order.
// Their weights are the softmax over these, or over all experts. A logit that is not a number makes all weights such.
__global__ void __launch_bounds__(kThreads)
    route_kernel(const float* __restrict__ logits, int64_t num_tokens, int32_t num_experts, int32_t each, bool over_all,
                 int64_t* experts, float* weights) {
  const int64_t token = int64_t{blockIdx.x} * kWarps + threadIdx.x / 32;
  if (token >= num_tokens) return;  // a whole warp
  const int lane = static_cast<int>(threadIdx.x % 32);
  const float* const row = logits + token * num_experts;
  float last = INFINITY, best = 0.0F, own = 0.0F;
  int32_t last_place = -1, own_expert = 0;
  for (int32_t j = 0; j < each; ++j) {
    float value = -INFINITY;
    int32_t place = num_experts;
    for (int32_t e = lane; e < num_experts; e += 32) {
      if (row[e] > last || (row[e] == last && e <= last_place)) continue;
      if (row[e] > value || (row[e] == value && e < place)) value = row[e], place = e;
    }
    for (int mask = 16; mask > 0; mask /= 2) {
      const float other = __shfl_xor_sync(0xffffffffU, value, mask);
      const int32_t at = __shfl_xor_sync(0xffffffffU, place, mask);
      if (other > value || (other == value && at < place)) value = other, place = at;
    }
    last = value, last_place = place;
    if (j == 0) best = value;
    if (lane == j) own = expf(value - best), own_expert = place < num_experts ? place : num_experts - 1;
  }
  float sum = 0.0F;
  for (int32_t e = lane; e < num_experts; e += 32)
    if (over_all || row[e] != row[e]) sum += expf(row[e] - best);
  sum = warp_sum(sum);
  int rank = 0;
  for (int32_t j = 0; j < each; ++j) {
    if (!over_all) sum += __shfl_sync(0xffffffffU, own, j);
    const int32_t other = __shfl_sync(0xffffffffU, own_expert, j);
    if (other < own_expert || (other == own_expert && j < lane)) ++rank;
  }
  if (lane >= each) return;
  experts[token * each + rank] = own_expert;
  weights[token * each + rank] = own / sum;
}

// One block per expert. order [pairs]: all pairs, by expert and then by number. tiles: those of expert e begin at
// begin / tile_rows + e, where `begin` counts the pairs of lower experts: so they have place enough, and no block needs to
// know how many tiles another expert has. A tile without rows has count 0.
__global__ void __launch_bounds__(kThreads)
    group_experts_kernel(const int64_t* __restrict__ experts, int32_t num_pairs, int32_t tile_rows, int32_t* order,
                         MortiseCudaExpertTile* tiles) {
  MORTISE_SHARED(int32_t, lower_of_warp, kWarps);
  MORTISE_SHARED(int32_t, own_of_warp, kWarps);
  const int32_t expert = static_cast<int32_t>(blockIdx.x);
  const int lane = static_cast<int>(threadIdx.x % 32), warp = static_cast<int>(threadIdx.x / 32);
  const int32_t of_warp = ((num_pairs + kWarps - 1) / kWarps + 31) / 32 * 32, first = warp * of_warp;
  int32_t lower = 0, own = 0;
  for (int32_t i = first + lane; i < first + of_warp; i += 32) {
    const int64_t it = i < num_pairs ? experts[i] : INT64_MAX;
    lower += it < expert ? 1 : 0;
    own += it == expert ? 1 : 0;
  }
  lower = warp_sum(lower);
  own = warp_sum(own);
  if (lane == 0) lower_of_warp[warp] = lower, own_of_warp[warp] = own;
  __syncthreads();
  int32_t begin = 0, before = 0, count = 0;
  for (int w = 0; w < kWarps; ++w) {
    begin += lower_of_warp[w];
    if (w < warp) before += own_of_warp[w];
    count += own_of_warp[w];
  }
  int32_t place = begin + before;
  for (int32_t i = first; i < first + of_warp; i += 32) {
    const bool is_own = i + lane < num_pairs && experts[i + lane] == expert;
    const unsigned there = __ballot_sync(0xffffffffU, is_own);
    if (is_own) order[place + __popc(there & ((1U << lane) - 1U))] = i + lane;
    place += __popc(there);
  }
  const int32_t slot = begin / tile_rows + expert, num_slots = (begin + count) / tile_rows + expert + 1 - slot;
  for (int32_t t = static_cast<int32_t>(threadIdx.x); t < num_slots; t += kThreads) {
    const int32_t left = count - t * tile_rows, rows = left < tile_rows ? left : tile_rows;
    tiles[slot + t] = {expert, begin + t * tile_rows, rows > 0 ? rows : 0};
  }
}

constexpr int kTileColumns = 64,
              kTileDepth = 64;                 // numbers of results, and of terms that are in shared memory at a time
constexpr int kTileStride = kTileColumns + 1;  // so that neither rows nor columns of weights meet in a bank

constexpr int kTileWeights = 16;  // a thread loads so many, next to each other

// What a thread loads of a tile while the terms before these are added.
template <int kRows>
struct TileNumbers {
  LaneNumbers<float, kTileWeights> weights;
  float rows[kRows / 4];
};

// A column of weights lies in one row of `weight` [columns, depth], or if kStacked in one column of [depth, columns].
template <int kRows, bool kStacked>
__device__ inline TileNumbers<kRows> load_tile(const float* __restrict__ weight,
                                               const float* const (&sources)[kRows / 4], int64_t column, int64_t term,
                                               int64_t columns, int64_t depth) {
  TileNumbers<kRows> out;
  const int64_t line = threadIdx.x / 4, at = threadIdx.x % 4 * kTileWeights;
  const int64_t row = (kStacked ? term : column) + line, width = kStacked ? columns : depth;
  if (row < (kStacked ? depth : columns))
    load_numbers(weight + row * width, static_cast<int>((kStacked ? column : term) + at), static_cast<int>(width),
                 out.weights);
  const int64_t own = term + threadIdx.x % 64;
  MORTISE_UNROLL
  for (int j = 0; j < kRows / 4; ++j) out.rows[j] = sources[j] != nullptr && own < depth ? sources[j][own] : 0.0F;
  return out;
}

// For float32 matrices (bfloat16: expert_tensors.cuh): y[pair] = x[pair / divisor] op(weight[expert]) + bias[expert]. One block
// per tile of rows and kTileColumns columns. A thread has one column and 4 rows, and with 4 rows in a tile a quarter of the
// terms. The next numbers are under way meanwhile.
template <int kRows, bool kStacked>
__global__ void __launch_bounds__(kThreads, 4)
    expert_product_kernel(const float* __restrict__ x, int32_t divisor, const float* __restrict__ weight,
                          const float* __restrict__ bias, const int32_t* __restrict__ order,
                          const MortiseCudaExpertTile* __restrict__ tiles, int64_t depth, int64_t columns, float* y) {
  constexpr int kGroups = kRows / 4, kParts = 4 / kGroups, kPartDepth = kTileDepth / kParts;
  MORTISE_SHARED(float, weights, kTileDepth* kTileStride);
  MORTISE_SHARED(float, rows, kTileDepth* kRows);
  const auto blocks_of_tile = static_cast<unsigned>((columns + kTileColumns - 1) / kTileColumns);
  const MortiseCudaExpertTile tile = tiles[blockIdx.x / blocks_of_tile];
  if (tile.count == 0) return;  // the whole block
  const int thread = static_cast<int>(threadIdx.x), column = thread % kTileColumns, group = thread / kTileColumns;
  const int64_t first = int64_t{blockIdx.x % blocks_of_tile} * kTileColumns;
  const float* const own_weight = weight + tile.expert * depth * columns;
  const float* sources[kRows / 4];
  MORTISE_UNROLL
  for (int j = 0; j < kRows / 4; ++j) {
    const int row = thread / 64 + 4 * j;
    sources[j] = row < tile.count ? x + order[tile.first + row] / divisor * depth : nullptr;
  }
  const int own_row = group % kGroups * 4, own_term = group / kGroups * kPartDepth;
  float sums[4] = {};
  auto next = load_tile<kRows, kStacked>(own_weight, sources, first, 0, columns, depth);
  MORTISE_NO_UNROLL for (int64_t term = 0; term < depth; term += kTileDepth) {
    MORTISE_UNROLL
    for (int i = 0; i < kTileWeights; ++i) {
      const int line = thread / 4, at = thread % 4 * kTileWeights + i;
      weights[kStacked ? line * kTileStride + at : at * kTileStride + line] = next.weights[i];
    }
    MORTISE_UNROLL
    for (int j = 0; j < kRows / 4; ++j) rows[thread % 64 * kRows + thread / 64 + 4 * j] = next.rows[j];
    __syncthreads();
    next = load_tile<kRows, kStacked>(own_weight, sources, first, term + kTileDepth, columns, depth);
    if (own_row < tile.count) {
      MORTISE_UNROLL
      for (int t = 0; t < kPartDepth; ++t) {
        const float factor = weights[(own_term + t) * kTileStride + column];
        MORTISE_UNROLL
        for (int i = 0; i < 4; ++i) sums[i] += rows[(own_term + t) * kRows + own_row + i] * factor;
      }
    }
    __syncthreads();
  }
  if constexpr (kParts > 1) {
    MORTISE_SHARED(float, parts, kThreads * 4);
    MORTISE_UNROLL
    for (int i = 0; i < 4; ++i) parts[(group * 4 + i) * kTileColumns + column] = sums[i];
    __syncthreads();
    sums[0] = 0.0F;
    for (int part = 0; part < kParts; ++part) sums[0] += parts[(part * 4 + group) * kTileColumns + column];
  }
  if (first + column >= columns) return;
  const float added = bias != nullptr ? bias[tile.expert * columns + first + column] : 0.0F;
  MORTISE_UNROLL
  for (int i = 0; i < (kParts > 1 ? 1 : 4); ++i) {
    const int row = kParts > 1 ? group : own_row + i;
    if (row < tile.count) y[order[tile.first + row] * columns + first + column] = sums[i] + added;
  }
}

// out[token] = sum of weights[pair] y[pair] over the token's pairs, in their order.
__global__ void __launch_bounds__(kThreads)
    sum_experts_kernel(const float* __restrict__ y, const float* __restrict__ weights, int32_t each, int64_t width,
                       float* out) {
  const int64_t blocks_of_row = (width + kThreads - 1) / kThreads;
  const int64_t token = blockIdx.x / blocks_of_row, column = blockIdx.x % blocks_of_row * kThreads + threadIdx.x;
  if (column >= width) return;
  float sum = 0.0F;
  for (int64_t pair = token * each; pair < (token + 1) * each; ++pair) sum += weights[pair] * y[pair * width + column];
  out[token * width + column] = sum;
}

}  // namespace mortise::cuda
