// The products of experts.cuh for bfloat16 matrices, by tensor cores.
//
// One block per tile of kRows rows and kTileColumns columns. Its 8 warps have 8 columns each. Numbers lie in shared memory as
// pairs of terms; a row of them is 4 pairs longer than it must be, so that what the lanes of a warp read lies in 32 banks. The
// next numbers are under way while these are multiplied. Sums are float32, in one order.
#pragma once

#include "cuda/kernels/experts.cuh"

namespace mortise::cuda {

constexpr int kDepthPairs = kTileDepth / 2;
constexpr int kPairStride = kDepthPairs + 4;

__device__ inline uint32_t pair_of(uint16_t first, uint16_t second) { return first | uint32_t{second} << 16; }

// What a thread loads: 8 pairs of weights, and its share of the rows.
template <int kRows>
struct TensorTile {
  static constexpr int kOfRows = kRows * kDepthPairs / kThreads;
  uint32_t weights[8], rows[kOfRows];
};

// Weights of [depth, columns]: 8 columns of two terms. A warp then writes each column's pairs next to each other.
struct StackedPlace {
  int pair, column;
};
__device__ inline StackedPlace stacked_place() {
  return {static_cast<int>(threadIdx.x % 32), static_cast<int>(threadIdx.x / 32) * 8};
}

template <int kRows, bool kStacked>
__device__ inline TensorTile<kRows> load_tensor_tile(const uint16_t* __restrict__ weight, const uint16_t* source,
                                                     int64_t column, int64_t term, int64_t columns, int64_t depth) {
  TensorTile<kRows> out;
  if constexpr (kStacked) {
    const StackedPlace own = stacked_place();
    LaneNumbers<uint16_t, 8> numbers[2];
    MORTISE_UNROLL
    for (int i = 0; i < 2; ++i) {
      const int64_t line = term + 2 * own.pair + i;
      if (line < depth)
        load_numbers(weight + line * columns, static_cast<int>(column) + own.column, static_cast<int>(columns),
                     numbers[i]);
    }
    MORTISE_UNROLL
    for (int i = 0; i < 8; ++i)
      out.weights[i] = pair_of(numbers[0].loads[0].numbers[i], numbers[1].loads[0].numbers[i]);
  } else {
    const int64_t line = column + threadIdx.x / 4;
    LaneNumbers<uint16_t, 16> numbers;
    if (line < columns)
      load_numbers(weight + line * depth, static_cast<int>(term + threadIdx.x % 4 * 16), static_cast<int>(depth),
                   numbers);
    MORTISE_UNROLL
    for (int i = 0; i < 8; ++i)
      out.weights[i] = pair_of(numbers.loads[i / 4].numbers[i % 4 * 2], numbers.loads[i / 4].numbers[i % 4 * 2 + 1]);
  }
  constexpr int kOfRows = TensorTile<kRows>::kOfRows, kEach = 2 * kOfRows;
  LaneNumbers<uint16_t, kEach> numbers;
  const int64_t own = term + threadIdx.x % (kTileDepth / kEach) * kEach;
  if (source != nullptr) load_numbers(source, static_cast<int>(own), static_cast<int>(depth), numbers);
  constexpr int kOfLoad = LaneNumbers<uint16_t, kEach>::kEach / 2;
  MORTISE_UNROLL
  for (int i = 0; i < kOfRows; ++i)
    out.rows[i] = pair_of(numbers.loads[i / kOfLoad].numbers[i % kOfLoad * 2],
                          numbers.loads[i / kOfLoad].numbers[i % kOfLoad * 2 + 1]);
  return out;
}

template <int kRows, bool kStacked, class Weights, class Rows>
__device__ inline void store_tensor_tile(const TensorTile<kRows>& tile, Weights& weights, Rows& rows) {
  const int thread = static_cast<int>(threadIdx.x);
  MORTISE_UNROLL
  for (int i = 0; i < 8; ++i) {
    const StackedPlace own = stacked_place();
    weights[kStacked ? (own.column + i) * kPairStride + own.pair : thread / 4 * kPairStride + thread % 4 * 8 + i] =
        tile.weights[i];
  }
  constexpr int kOfRows = TensorTile<kRows>::kOfRows, kLanes = kDepthPairs / kOfRows;
  MORTISE_UNROLL
  for (int i = 0; i < kOfRows; ++i) rows[thread / kLanes * kPairStride + thread % kLanes * kOfRows + i] = tile.rows[i];
}

template <int kRows, bool kStacked>
__global__ void __launch_bounds__(kThreads, 3)
    expert_tensor_kernel(const uint16_t* __restrict__ x, int32_t divisor, const uint16_t* __restrict__ weight,
                         const float* __restrict__ bias, const int32_t* __restrict__ order,
                         const MortiseCudaExpertTile* __restrict__ tiles, int64_t depth, int64_t columns, float* y) {
  constexpr int kParts = kRows / 16;
  MORTISE_SHARED(uint32_t, weights, kTileColumns * kPairStride);
  MORTISE_SHARED(uint32_t, rows, kRows * kPairStride);
  const auto blocks_of_tile = static_cast<unsigned>((columns + kTileColumns - 1) / kTileColumns);
  const MortiseCudaExpertTile tile = tiles[blockIdx.x / blocks_of_tile];
  if (tile.count == 0) return;  // the whole block
  const int64_t first = int64_t{blockIdx.x % blocks_of_tile} * kTileColumns;
  const uint16_t* const own_weight = weight + tile.expert * depth * columns;
  const int loaded = static_cast<int>(threadIdx.x) / (kDepthPairs / TensorTile<kRows>::kOfRows);
  const uint16_t* const source = loaded < tile.count ? x + order[tile.first + loaded] / divisor * depth : nullptr;
  const int warp = static_cast<int>(threadIdx.x / 32), group = static_cast<int>(threadIdx.x % 32) / 4,
            own = static_cast<int>(threadIdx.x % 4);
  float sums[kParts][4] = {};
  auto next = load_tensor_tile<kRows, kStacked>(own_weight, source, first, 0, columns, depth);
  MORTISE_NO_UNROLL for (int64_t term = 0; term < depth; term += kTileDepth) {
    store_tensor_tile<kRows, kStacked>(next, weights, rows);
    __syncthreads();
    next = load_tensor_tile<kRows, kStacked>(own_weight, source, first, term + kTileDepth, columns, depth);
    MORTISE_UNROLL
    for (int step = 0; step < kDepthPairs / 8; ++step) {
      const int pair = step * 8 + own, at = (warp * 8 + group) * kPairStride + pair;
      const uint32_t b[2] = {weights[at], weights[at + 4]};
      MORTISE_UNROLL
      for (int part = 0; part < kParts; ++part) {
        if (part * 16 >= tile.count) break;  // the whole block
        const int upper = (part * 16 + group) * kPairStride + pair, lower = upper + 8 * kPairStride;
        const uint32_t a[4] = {rows[upper], rows[lower], rows[upper + 4], rows[lower + 4]};
        multiply_in_warp(sums[part], a, b);
      }
    }
    __syncthreads();
  }
  MORTISE_UNROLL
  for (int i = 0; i < 4 * kParts; ++i) {
    const int row = i / 4 * 16 + group + (i % 4 >= 2 ? 8 : 0);
    const int64_t column = first + warp * 8 + own * 2 + i % 2;
    if (row >= tile.count || column >= columns) continue;
    const float added = bias != nullptr ? bias[tile.expert * columns + column] : 0.0F;
    y[order[tile.first + row] * columns + column] = sums[i / 4][i % 4] + added;
  }
}

}  // namespace mortise::cuda
