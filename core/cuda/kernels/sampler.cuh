// One token of each row of logits, with its log-probs: temperature, top_k, top_p and min_p as core/generate/sample/sampling.h
// says them, then the draw by a number in [0, 1) in the order of the ids. One block per row.
//
// Probabilities are exp in float32, their sums in float64 and in a fixed order. Filters look for their least logit bit by bit,
// so they sort nothing. Cost: two passes over the row without filters, and 32 more for top_k and for top_p each.
#pragma once

#include "cuda/kernels/dialect.cuh"
#include "cuda/module.h"

namespace mortise::cuda {

constexpr int kMostChunks = 512;  // chunks of the vocabulary, each with one sum

// Floats in their order as unsigned numbers.
__device__ inline uint32_t order_of(float value) {
  union {
    float number;
    uint32_t bits;
  } it = {value};
  return (it.bits & 0x80000000U) != 0 ? ~it.bits : it.bits | 0x80000000U;
}

// The float that order_of turned into `order`.
__device__ inline float value_of(uint32_t order) {
  union {
    uint32_t bits;
    float number;
  } it = {(order & 0x80000000U) != 0 ? order & 0x7FFFFFFFU : ~order};
  return it.number;
}

// As block_sum, and may be called again.
__device__ inline double block_total(double value) {
  MORTISE_SHARED(double, totals, kWarps);
  value = warp_sum(value);
  if (threadIdx.x % 32 == 0) totals[threadIdx.x / 32] = value;
  __syncthreads();
  double sum = 0;
  for (int w = 0; w < kWarps; ++w) sum += totals[w];
  __syncthreads();
  return sum;
}

// A row and what is kept of it. Tokens below `least` are dropped. So are the first `num_dropped` of those at `least`, and
// those with a probability below min_p times the best one's.
struct KeptRow {
  const float* logits;
  int32_t vocab;
  float best, inverse_temperature, min_p;
  uint32_t least;
  int32_t num_dropped;

  __device__ float mass(float logit) const { return expf((logit - best) * inverse_temperature); }
  // Ignores num_dropped. A mass that is not a number stays, so that the log-prob is not a number either.
  __device__ float kept_mass(int32_t i) const {
    if (i >= vocab || order_of(logits[i]) < least) return 0.0F;
    const float own = mass(logits[i]);
    return own < min_p ? 0.0F : own;
  }
  __device__ bool is_least(int32_t i) const { return i < vocab && order_of(logits[i]) == least; }
};

// The largest logit and the lowest id that has it.
__device__ inline void best_of(const float* row, int32_t vocab, float& best, int32_t& place) {
  MORTISE_SHARED(float, values, kWarps);
  MORTISE_SHARED(int32_t, places, kWarps);
  best = -INFINITY;
  place = vocab;
  for (int32_t i = static_cast<int32_t>(threadIdx.x); i < vocab; i += kThreads)
    if (row[i] > best) best = row[i], place = i;
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
}

// Sets `least` for top_k: the largest logit that k tokens reach.
__device__ inline void keep_top_k(KeptRow& row, int32_t k) {
  uint32_t least = 0;
  for (uint32_t bit = 0x80000000U; bit != 0; bit >>= 1) {
    double count = 0;
    for (int32_t i = static_cast<int32_t>(threadIdx.x); i < row.vocab; i += kThreads)
      count += order_of(row.logits[i]) >= (least | bit) ? 1.0 : 0.0;
    if (block_total(count) >= static_cast<double>(k)) least |= bit;
  }
  row.least = least;
}

// Sets `least` and `num_dropped` for top_p: drops the tail, in ascending order, whose mass is within 1 - top_p.
__device__ inline void keep_top_p(KeptRow& row, double top_p) {
  const uint32_t floor = row.least, top = order_of(row.best);
  double all = 0;
  for (int32_t i = static_cast<int32_t>(threadIdx.x); i < row.vocab; i += kThreads)
    if (order_of(row.logits[i]) >= floor) all += static_cast<double>(row.mass(row.logits[i]));
  const double limit = (1.0 - top_p) * block_total(all);
  uint32_t least = 0;
  double below = 0;
  for (uint32_t bit = 0x80000000U; bit != 0; bit >>= 1) {
    const uint32_t candidate = least | bit;
    double tail = 0;
    for (int32_t i = static_cast<int32_t>(threadIdx.x); i < row.vocab; i += kThreads) {
      const uint32_t order = order_of(row.logits[i]);
      if (order >= floor && order < candidate) tail += static_cast<double>(row.mass(row.logits[i]));
    }
    tail = block_total(tail);
    if (candidate > top || tail > limit) continue;
    least = candidate;
    below = tail;
  }
  double equal = 0;
  for (int32_t i = static_cast<int32_t>(threadIdx.x); i < row.vocab; i += kThreads)
    equal += order_of(row.logits[i]) == least ? 1.0 : 0.0;
  equal = block_total(equal);
  const double mass = static_cast<double>(row.mass(value_of(least)));
  const double fit = mass > 0 ? (limit - below) / mass : 0.0;
  row.least = least;
  row.num_dropped = static_cast<int32_t>(fit < equal - 1 ? fit : equal - 1);
}

// Where a draw ends: the chunk, what is left of the target there, and how many of the next tokens at `least` are dropped.
struct ChosenChunk {
  double total, target;
  int32_t chunk, num_dropped;
};

template <class Masses, class Equals>
__device__ inline ChosenChunk choose_chunk(const KeptRow& row, int32_t num_chunks, double uniform, const Masses& masses,
                                           const Equals& equals) {
  double each = row.num_dropped > 0 ? static_cast<double>(row.mass(value_of(row.least))) : 0.0;
  if (each < static_cast<double>(row.min_p)) each = 0.0;  // min_p drops them all
  ChosenChunk out = {0.0, 0.0, 0, row.num_dropped};
  for (int pass = 0; pass < 2; ++pass) {
    double target = uniform * out.total;
    int32_t left = row.num_dropped;
    for (int32_t chunk = 0; chunk < num_chunks; ++chunk) {
      const int32_t equal = equals[chunk], dropped = left < equal ? left : equal;
      const double mass = masses[chunk] - dropped * each;
      if (pass == 0) out.total += mass;
      if (pass == 1 && mass > 0) {
        out.chunk = chunk, out.target = target, out.num_dropped = left;
        if (target < mass) break;
        target -= mass;
      }
      left -= dropped;
    }
  }
  return out;
}

// By one warp: the token of the chunk at which the sum of the masses exceeds the target; -1 if nothing there has a mass.
__device__ inline int32_t token_of_chunk(const KeptRow& row, const ChosenChunk& at, int32_t columns) {
  const int lane = static_cast<int>(threadIdx.x % 32);
  double before = 0;
  int32_t left = at.num_dropped, pick = -1;
  for (int32_t first = at.chunk * columns; first < (at.chunk + 1) * columns; first += 32) {
    const int32_t i = first + lane;
    float mass = row.kept_mass(i);
    const unsigned equal = __ballot_sync(0xffffffffU, row.is_least(i));
    if (row.is_least(i) && __popc(equal & ((1U << lane) - 1U)) < left) mass = 0.0F;
    left -= left < __popc(equal) ? left : __popc(equal);
    double sum = static_cast<double>(mass);
    for (int distance = 1; distance < 32; distance *= 2) {
      const double lower = __shfl_up_sync(0xffffffffU, sum, static_cast<unsigned>(distance));
      if (lane >= distance) sum += lower;
    }
    const unsigned there = __ballot_sync(0xffffffffU, mass > 0.0F);
    const unsigned above = __ballot_sync(0xffffffffU, mass > 0.0F && at.target < before + sum);
    if (above != 0) return first + __ffs(above) - 1;
    if (there != 0) pick = first + 31 - __clz(static_cast<int>(there));
    before += __shfl_sync(0xffffffffU, sum, 31);
  }
  return pick;
}

__global__ void __launch_bounds__(kThreads, 4)
    sample_kernel(const float* __restrict__ logits, int64_t stride, int32_t vocab,
                  const MortiseCudaDraw* __restrict__ draws, MortiseCudaDrawn* drawn) {
  MORTISE_SHARED(double, masses, kMostChunks);
  MORTISE_SHARED(int32_t, equals, kMostChunks);
  const MortiseCudaDraw draw = draws[blockIdx.x];
  KeptRow row = {logits + blockIdx.x * stride, vocab, 0.0F, draw.inverse_temperature, 0.0F, 0U, 0};
  int32_t place = 0;
  best_of(row.logits, vocab, row.best, place);
  const int lane = static_cast<int>(threadIdx.x % 32), warp = static_cast<int>(threadIdx.x / 32);
  const int32_t columns = ((vocab + kMostChunks - 1) / kMostChunks + 31) / 32 * 32;
  const int32_t num_chunks = (vocab + columns - 1) / columns;
  const bool filters = draw.greedy == 0 && (draw.top_k > 0 || draw.top_p < 1.0 || draw.min_p > 0.0F);
  double all = 0;
  if (filters) {
    for (int32_t i = static_cast<int32_t>(threadIdx.x); i < vocab; i += kThreads)
      all += static_cast<double>(row.mass(row.logits[i]));
    all = block_total(all);
    if (draw.top_k > 0 && draw.top_k < vocab) keep_top_k(row, draw.top_k);
    if (draw.top_p < 1.0) keep_top_p(row, draw.top_p);
    row.min_p = draw.min_p;
  }
  for (int32_t chunk = warp; chunk < num_chunks; chunk += kWarps) {
    double mass = 0;
    int32_t equal = 0;
    for (int32_t i = chunk * columns + lane; i < (chunk + 1) * columns; i += 32) {
      mass += static_cast<double>(row.kept_mass(i));
      equal += row.is_least(i) ? 1 : 0;
    }
    mass = warp_sum(mass);
    equal = warp_sum(equal);
    if (lane == 0) masses[chunk] = mass, equals[chunk] = equal;
  }
  __syncthreads();
  if (warp != 0) return;
  ChosenChunk at = {0.0, 0.0, 0, 0};
  if (lane == 0) at = choose_chunk(row, num_chunks, draw.uniform, masses, equals);
  at = {__shfl_sync(0xffffffffU, at.total, 0), __shfl_sync(0xffffffffU, at.target, 0),
        __shfl_sync(0xffffffffU, at.chunk, 0), __shfl_sync(0xffffffffU, at.num_dropped, 0)};
  int32_t token = token_of_chunk(row, at, columns);
  if (lane != 0) return;
  if (draw.greedy != 0 || token < 0) token = place < vocab ? place : 0;  // no mass: the logits are not numbers
  const double shifted = static_cast<double>((row.logits[token] - row.best) * row.inverse_temperature);
  const double log_prob = shifted - log(filters ? all : at.total);
  drawn[blockIdx.x] = {token, static_cast<float>(log_prob),
                       draw.greedy != 0 ? 0.0F : static_cast<float>(shifted - log(at.total))};
}

}  // namespace mortise::cuda
