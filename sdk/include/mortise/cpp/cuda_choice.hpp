/* A choice of tokens (choice.hpp) on a CUDA device: a kernel for the keys, and one whose only block finds the least key that
 * the budget has no room for, two bits in each walk over the keys. Nothing waits for the host. Only code that nvcc compiles
 * for a plugin with accepts_cuda uses it.
 */
#ifndef MORTISE_CPP_CUDA_CHOICE_HPP_
#define MORTISE_CPP_CUDA_CHOICE_HPP_

#include "cuda_loop.hpp"
#include "passes.hpp"

#if MORTISE_HAS_CUDA_BUILD

namespace mortise {
namespace detail {

template <class Key>
__global__ void __launch_bounds__(kCudaThreads, 1)
    choice_keys_kernel(Key key, TokenColumns in, const std::int64_t* row_offsets, const std::uint64_t* row_numbers,
                       std::uint64_t* keys) {
  const std::int64_t first = row_offsets[blockIdx.x], end = row_offsets[blockIdx.x + 1];
  const std::uint64_t number = row_numbers == nullptr ? 0 : row_numbers[blockIdx.x];
  std::int64_t counted = first;
  RowToken token{0, number};
  for (std::int64_t t = first + int(threadIdx.x); t < end; t += kCudaThreads) {
    for (; counted < t; ++counted) token.index += in.mask[counted] != 0 ? 1 : 0;
    keys[t] = in.mask[t] != 0 ? key(in, t, token) : kNeverChosen;
  }
}

// The sums over the block, the same in every thread.
template <int kCount>
__device__ inline void sum_over_block(std::int64_t (&values)[kCount]) {
  MORTISE_SHARED(std::int64_t, merged, kCount * kCudaWarps);
  const int thread = int(threadIdx.x);
  for (int i = 0; i < kCount; ++i) {
    long long total = values[i];
    for (int mask = 16; mask > 0; mask /= 2) total += __shfl_xor_sync(0xffffffffU, total, mask);
    if (thread % 32 == 0) merged[thread / 32 * kCount + i] = total;
  }
  __syncthreads();
  for (int i = 0; i < kCount; ++i) {
    values[i] = 0;
    for (int w = 0; w < kCudaWarps; ++w) values[i] += merged[w * kCount + i];
  }
  __syncthreads();
}

// The least key up to which the tokens are not all chosen; kNeverChosen if all are.
template <class Cost>
__device__ inline std::uint64_t least_without_room(const Cost& cost, std::int64_t budget, const std::uint64_t* keys,
                                                   std::int64_t num_tokens) {
  std::uint64_t found = 0;
  for (int shift = 62; shift >= 0; shift -= 2) {
    // For the tokens up to the end of each quarter but the last: both parts of their costs, and how many are not negative.
    std::int64_t sums[9] = {};
    for (std::int64_t t = int(threadIdx.x); t < num_tokens; t += kCudaThreads) {
      const std::uint64_t key = keys[t];
      if (key == kNeverChosen) continue;
      const std::int64_t own = cost(key);
      for (int quarter = 0; quarter < 3; ++quarter) {
        if (key > found + ((std::uint64_t(quarter + 1) << shift) - 1)) continue;
        sums[3 * quarter] += own >> 32;
        sums[3 * quarter + 1] += own & 0xffffffff;
        sums[3 * quarter + 2] += own >= 0;
      }
    }
    sum_over_block(sums);
    std::uint64_t chosen = 0;
    for (int quarter = 0; quarter < 3; ++quarter) {
      const CostSum sum{sums[3 * quarter], sums[3 * quarter + 1]};
      chosen += std::uint64_t(sums[3 * quarter + 2] == 0 || sum.is_within(budget));
    }
    found += chosen << shift;
  }
  return found;
}

// The first `room` tokens of a key, in the order of the rows' names.
__device__ inline void choose_equal(std::uint64_t key, std::int64_t room, double chosen, const std::uint64_t* keys,
                                    const std::int64_t* row_offsets, const std::int64_t* order, std::int64_t num_rows,
                                    double* numbers) {
  MORTISE_SHARED(int, equal, kCudaWarps);
  const int thread = int(threadIdx.x), lane = thread % 32, warp = thread / 32;
  std::int64_t seen = 0;
  for (std::int64_t place = 0; place < num_rows; ++place) {
    const std::int64_t end = row_offsets[order[place] + 1];
    for (std::int64_t first = row_offsets[order[place]]; first < end && seen < room; first += kCudaThreads) {
      const std::int64_t t = first + thread;
      const bool is_equal = t < end && keys[t] == key;
      const unsigned votes = __ballot_sync(0xffffffffU, is_equal);
      if (lane == 0) equal[warp] = __popc(votes);
      __syncthreads();
      std::int64_t before = seen;
      for (int w = 0; w < kCudaWarps; ++w) {
        if (w < warp) before += equal[w];
        seen += equal[w];
      }
      if (is_equal && before + __popc(votes & ((1U << lane) - 1)) < room) numbers[t] = chosen;
      __syncthreads();
    }
  }
}

// One block.
template <class Cost>
__global__ void __launch_bounds__(kCudaThreads, 1)
    choose_kernel(Cost cost, Choice choice, const std::uint64_t* keys, std::int64_t num_tokens,
                  const std::int64_t* row_offsets, const std::int64_t* order, std::int64_t num_rows, double* numbers) {
  const std::uint64_t border = least_without_room(cost, choice.budget, keys, num_tokens);
  std::int64_t sums[4] = {};  // costs below the border in two parts, how many tokens are below it, and how many at it
  for (std::int64_t t = int(threadIdx.x); t < num_tokens; t += kCudaThreads) {
    const std::uint64_t key = keys[t];
    if (key == kNeverChosen) continue;
    const std::int64_t own = key < border ? cost(key) : 0;
    sums[0] += own >> 32;
    sums[1] += own & 0xffffffff;
    sums[2] += key < border;
    sums[3] += key == border;
  }
  sum_over_block(sums);
  std::int64_t room = border == kNeverChosen ? 0 : CostSum{sums[0], sums[1]}.room(choice.budget, cost(border));
  if (choice.keeps_one && sums[2] == 0 && room == 0) room = 1;
  const bool takes_border = border != kNeverChosen && room >= sums[3];
  const std::uint64_t last = border + std::uint64_t(takes_border);  // behind the keys that are chosen whole
  for (std::int64_t t = int(threadIdx.x); t < num_tokens; t += kCudaThreads) {
    const std::uint64_t key = keys[t];
    numbers[t] = key == kNeverChosen ? choice.never : key < last ? choice.chosen : choice.others;
  }
  if (room > 0 && room < sums[3])
    choose_equal(border, room, choice.chosen, keys, row_offsets, order, num_rows, numbers);
}

}  // namespace detail
}  // namespace mortise

#endif

#endif  // MORTISE_CPP_CUDA_CHOICE_HPP_
