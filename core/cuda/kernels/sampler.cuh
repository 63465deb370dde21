// One token of each row of logits, with its log-probs: temperature, top_k, top_p, min_p and typical_p as
// core/generate/sample/sampling.h says them, then the draw by a number in [0, 1) in the order of the ids. One block per row.
//
// Probabilities are exp in float32, their sums in float64 and in a fixed order. Filters look for their least logit (typical_p:
// for its largest distance) three bits at a time, so they sort nothing. Cost: two passes over the row without filters, and 11
// to 13 more for top_k, top_p and typical_p each. The later ones of these only add up few tokens.
#pragma once

#include "cuda/kernels/edits.cuh"
#include "cuda/kernels/logit_rows.cuh"

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

// A row and what is kept of it. Tokens below `least` are dropped. So are the first `num_dropped` of those at `least`, those
// with a probability below min_p times the best one's, and those that are farther than `far` from `center`.
struct KeptRow {
  const float* logits;
  int32_t vocab;
  float best, inverse_temperature, min_p;
  uint32_t least;
  int32_t num_dropped;
  float center, far;  // typical_p keeps log(mass) within `far` of `center`; INFINITY: off

  __device__ float shifted(float logit) const { return (logit - best) * inverse_temperature; }
  __device__ float mass(float logit) const { return expf(shifted(logit)); }
  __device__ float distance(float logit) const { return fabsf(shifted(logit) - center); }
  // Ignores num_dropped. A mass that is not a number stays, so that the log-prob is not a number either.
  __device__ float kept_mass(int32_t i) const {
    if (i >= vocab || order_of(logits[i]) < least) return 0.0F;
    const float own = mass(logits[i]);
    return own < min_p || distance(logits[i]) > far ? 0.0F : own;
  }
  // The mass of each of the tokens that num_dropped counts.
  __device__ double dropped_mass() const {
    const float own = num_dropped > 0 ? mass(value_of(least)) : 0.0F;
    return own < min_p || distance(value_of(least)) > far ? 0.0 : static_cast<double>(own);
  }
  __device__ bool is_least(int32_t i) const { return i < vocab && order_of(logits[i]) == least; }
};

// A filter looks for a number of 32 bits by digits, from the highest one on.
constexpr int kDigitBits = 3, kDigits = 1 << kDigitBits;
constexpr int kFirstShift = 30;  // the highest digit has two bits

// Over the block: what each value of the digit at `shift` adds up, of the tokens whose higher digits are those of `found`.
template <class Order, class Weight>
__device__ inline void sum_digits(int32_t vocab, uint32_t found, int shift, const Order& order_at,
                                  const Weight& weight_at, double (&sums)[kDigits]) {
  MORTISE_UNROLL
  for (int d = 0; d < kDigits; ++d) sums[d] = 0;
  for (int32_t i = static_cast<int32_t>(threadIdx.x); i < vocab; i += kThreads) {
    const uint32_t order = order_at(i);
    if (shift < kFirstShift && (order ^ found) >> (shift + kDigitBits) != 0) continue;
    const int digit = static_cast<int>(order >> shift & (kDigits - 1));
    const double weight = weight_at(i);
    MORTISE_UNROLL
    for (int d = 0; d < kDigits; ++d) sums[d] += digit == d ? weight : 0.0;
  }
  block_sums(sums, shift / kDigitBits % 2);
}

// The largest number that `takes`, which gets a number and what all tokens below it add up. If it takes a number, it takes those
// below it, and always 0. `below` becomes the sum below the result.
template <class Order, class Weight, class Takes>
__device__ inline uint32_t largest_taken(int32_t vocab, const Order& order_at, const Weight& weight_at,
                                         const Takes& takes, double& below) {
  uint32_t found = 0;
  below = 0;
  MORTISE_NO_UNROLL for (int shift = kFirstShift; shift >= 0; shift -= kDigitBits) {
    double sums[kDigits];
    sum_digits(vocab, found, shift, order_at, weight_at, sums);
    const uint32_t prefix = found;
    double sum = below;
    MORTISE_UNROLL
    for (int d = 1; d < kDigits; ++d) {
      sum += sums[d - 1];
      if (shift == kFirstShift && d > 3) continue;
      const uint32_t candidate = prefix | static_cast<uint32_t>(d) << shift;
      if (takes(candidate, sum)) found = candidate, below = sum;
    }
  }
  return found;
}

// Sets `least` for top_k: the largest logit that k tokens reach.
__device__ inline void keep_top_k(KeptRow& row, int32_t k) {
  const double most = static_cast<double>(row.vocab - k);
  double below = 0;
  row.least = largest_taken(
      row.vocab, [&](int32_t i) { return order_of(row.logits[i]); }, [](int32_t) { return 1.0; },
      [&](uint32_t, double smaller) { return smaller <= most; }, below);
}

// Sets `least` and `num_dropped` for top_p: drops the tail, in ascending order, whose mass is within 1 - top_p.
__device__ inline void keep_top_p(KeptRow& row, double top_p) {
  const uint32_t floor = row.least, top = order_of(row.best);
  const auto order_at = [&](int32_t i) { return order_of(row.logits[i]); };
  const auto mass_at = [&](int32_t i) {
    return order_at(i) >= floor ? static_cast<double>(row.mass(row.logits[i])) : 0.0;
  };
  double all = 0, below = 0;
  for (int32_t i = static_cast<int32_t>(threadIdx.x); i < row.vocab; i += kThreads) all += mass_at(i);
  const double limit = (1.0 - top_p) * block_total(all);
  const uint32_t least = largest_taken(
      row.vocab, order_at, mass_at,
      [&](uint32_t candidate, double tail) { return candidate <= top && !(tail > limit); }, below);
  double equal = 0;
  for (int32_t i = static_cast<int32_t>(threadIdx.x); i < row.vocab; i += kThreads)
    equal += order_of(row.logits[i]) == least ? 1.0 : 0.0;
  equal = block_total(equal);
  const double mass = static_cast<double>(row.mass(value_of(least)));
  const double fit = mass > 0 ? (limit - below) / mass : 0.0;
  row.least = least;
  row.num_dropped = static_cast<int32_t>(fit < equal - 1 ? fit : equal - 1);
}

// Sets `center` and `far` for typical_p. A token's information is log(total) - log(mass), so its distance from the entropy is
// that of log(mass) from the mean of log(mass). `far` is the least distance within which the mass reaches typical_p of all.
__device__ inline void keep_typical(KeptRow& row, double typical_p) {
  double all = 0, weighted = 0;
  for (int32_t i = static_cast<int32_t>(threadIdx.x); i < row.vocab; i += kThreads) {
    const double mass = static_cast<double>(row.kept_mass(i));
    if (mass == 0.0) continue;  // its logarithm may be infinite
    all += mass;
    weighted += mass * static_cast<double>(row.shifted(row.logits[i]));
  }
  const double dropped = row.num_dropped * row.dropped_mass();
  const float least = value_of(row.least);
  all = block_total(all) - dropped;
  weighted = block_total(weighted) - (dropped > 0 ? dropped * static_cast<double>(row.shifted(least)) : 0.0);
  row.center = static_cast<float>(weighted / all);
  // Distances are not negative, so their bits have their order.
  const auto bits_of = [](float distance) { return order_of(distance) & 0x7FFFFFFFU; };
  const uint32_t of_least = bits_of(row.distance(least));
  double nearer = 0;
  const uint32_t far = largest_taken(
      row.vocab, [&](int32_t i) { return bits_of(row.distance(row.logits[i])); },
      [&](int32_t i) { return static_cast<double>(row.kept_mass(i)); },
      [&](uint32_t candidate, double sum) {
        return candidate < 0x80000000U && sum - (of_least < candidate ? dropped : 0.0) < typical_p * all;
      },
      nearer);
  row.far = value_of(far | 0x80000000U);
}

// Where a draw ends: the chunk, what is left of the target there, and how many of the next tokens at `least` are dropped.
struct ChosenChunk {
  double total, target;
  int32_t chunk, num_dropped;
};

template <class Masses, class Equals>
__device__ inline ChosenChunk choose_chunk(const KeptRow& row, int32_t num_chunks, double uniform, const Masses& masses,
                                           const Equals& equals) {
  const double each = row.dropped_mass();
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
                  const MortiseCudaDraw* __restrict__ draws, MortiseCudaEdited edited, MortiseCudaDrawn* drawn) {
  MORTISE_SHARED(double, masses, kMostChunks);
  MORTISE_SHARED(int32_t, equals, kMostChunks);
  const MortiseCudaDraw draw = draws[blockIdx.x];
  const bool is_edited = edited.edits != nullptr && changes_logits(edited.edits[blockIdx.x]);
  const float* const own = logits + blockIdx.x * stride;
  KeptRow row = {is_edited ? edited.logits + blockIdx.x * int64_t{vocab} : own,
                 vocab,
                 0.0F,
                 draw.inverse_temperature,
                 0.0F,
                 0U,
                 0,
                 0.0F,
                 INFINITY};
  int32_t place = 0;
  best_of(row.logits, vocab, row.best, place);
  const int lane = static_cast<int>(threadIdx.x % 32), warp = static_cast<int>(threadIdx.x / 32);
  const int32_t columns = ((vocab + kMostChunks - 1) / kMostChunks + 31) / 32 * 32;
  const int32_t num_chunks = (vocab + columns - 1) / columns;
  const bool filters =
      draw.greedy == 0 && (draw.top_k > 0 || draw.top_p < 1.0 || draw.min_p > 0.0F || draw.typical_p > 0.0);
  double all = 0;
  if (filters) {
    for (int32_t i = static_cast<int32_t>(threadIdx.x); i < vocab; i += kThreads)
      all += static_cast<double>(row.mass(row.logits[i]));
    all = block_total(all);
    if (draw.top_k > 0 && draw.top_k < vocab) keep_top_k(row, draw.top_k);
    if (draw.top_p < 1.0) keep_top_p(row, draw.top_p);
    row.min_p = draw.min_p;
    if (draw.typical_p > 0.0) keep_typical(row, draw.typical_p);
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
  const double shifted = static_cast<double>(row.shifted(row.logits[token]));
  const double log_prob = is_edited ? own_log_prob(own[token], draw.inverse_temperature, edited.totals[blockIdx.x])
                                    : shifted - log(filters ? all : at.total);
  drawn[blockIdx.x] = {token, static_cast<float>(log_prob),
                       draw.greedy != 0 ? 0.0F : static_cast<float>(shifted - log(at.total))};
  if (edited.edits != nullptr) note_token(edited.edits[blockIdx.x], token);
}

}  // namespace mortise::cuda
