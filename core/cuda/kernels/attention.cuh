// Attention of a decoding step, one query per row, over keys and values in pages (Kwon et al. 2023) whose tokens are split among
// blocks (Dao et al. 2023).
//
// A page has kPageTokens tokens, [kv heads, tokens, D], in float32 or bfloat16. Row r of the block table names the pages of
// sample r. Positions are on the device, so no size of a launch depends on what was sampled.
// Cost: a block reads each number of its keys and values once, for up to heads_of_block() query heads that share them. Larger
// groups take several blocks. A load has 16 bytes (8 for 16 heads in bfloat16), but one number if the size of a head is no
// multiple of what a lane has.
#pragma once

#include "cuda/kernels/dialect.cuh"
#include "cuda/module.h"

namespace mortise::cuda {

constexpr int kPageTokens = MORTISE_CUDA_PAGE_TOKENS;
constexpr int kSplitTokens = MORTISE_CUDA_SPLIT_TOKENS;  // most tokens of one block

// Numbers of a token in one lane. A lane holds kHeads times as many of queries, and of sums.
template <int kHeads>
constexpr int kLaneNumbers = kHeads > 8 ? 4 : 8;

// The query heads of a block, if so many share a kv head of `dim` numbers. Fewer than 4 cost as much as 4. 16 leave room for
// heads of 128 numbers.
constexpr int heads_of_block(int group, int dim) { return group <= 4 ? 4 : group <= 8 || dim > 128 ? 8 : 16; }

// Query heads [head, head + num_heads) of a row, which share `kv_head`, and tokens [first, first + count) of one split.
struct AttentionPart {
  int64_t row;
  int first, split, kv_head, head, num_heads, count;
};

// The block's. A group of query heads is cut into parts of `most_heads`.
__device__ inline AttentionPart part_of_block(const MortiseCudaHeads& heads, int window, const int64_t* positions,
                                              int num_splits, int most_heads) {
  const int group = heads.num_heads / heads.num_kv_heads, num_parts = (group + most_heads - 1) / most_heads;
  AttentionPart out;
  out.split = static_cast<int>(blockIdx.x % static_cast<unsigned>(num_splits));
  unsigned rest = blockIdx.x / static_cast<unsigned>(num_splits);
  const int before = static_cast<int>(rest % static_cast<unsigned>(num_parts)) * most_heads;
  rest /= static_cast<unsigned>(num_parts);
  out.kv_head = static_cast<int>(rest % static_cast<unsigned>(heads.num_kv_heads));
  out.row = rest / static_cast<unsigned>(heads.num_kv_heads);
  out.head = out.kv_head * group + before;
  out.num_heads = group - before < most_heads ? group - before : most_heads;
  const int end = static_cast<int>(positions[out.row]) + 1, begin = out.split * kSplitTokens;
  const int seen = window > 0 && end > window ? end - window : 0;
  out.first = seen > begin ? seen : begin;
  const int last = end < begin + kSplitTokens ? end : begin + kSplitTokens;
  out.count = out.first < last ? last - out.first : 0;
  return out;
}

// Numbers of one token in one lane, as they are in memory.
template <class T, int kCount>
struct LaneNumbers {
  static constexpr int kEach = kCount * static_cast<int>(sizeof(T)) > 16 ? 16 / static_cast<int>(sizeof(T)) : kCount;
  struct alignas(kEach * sizeof(T)) Load {
    T numbers[kEach];
  };
  Load loads[kCount / kEach] = {};
  __device__ float operator[](int i) const { return number_of(loads[i / kEach].numbers[i % kEach]); }
};

// Loads numbers [at, at + kCount) of the `dim` numbers at `from`. Places of `out` without a number stay 0.
template <class T, int kCount>
__device__ inline void load_numbers(const T* __restrict__ from, int at, int dim, LaneNumbers<T, kCount>& out) {
  using Lane = LaneNumbers<T, kCount>;
  if (dim % kCount == 0) {
    if (at >= dim) return;
    MORTISE_UNROLL
    for (int i = 0; i < kCount / Lane::kEach; ++i)
      out.loads[i] = *reinterpret_cast<const typename Lane::Load*>(from + at + i * Lane::kEach);
    return;
  }
  MORTISE_UNROLL
  for (int i = 0; i < kCount; ++i)
    if (at + i < dim) out.loads[i / Lane::kEach].numbers[i % Lane::kEach] = from[at + i];
}

// Each token is read by `lanes` lanes, so a block reads kThreads / lanes tokens at a time.
struct TokenLanes {
  int lanes, at;  // `at`: the first number of this lane
};
template <int kNumbers>
__device__ inline TokenLanes token_lanes(int dim) {
  int lanes = 4;
  while (lanes * kNumbers < dim) lanes *= 2;
  return {lanes, static_cast<int>(threadIdx.x) % lanes * kNumbers};
}

// visit(n, numbers) for each token n of the part, in the lanes that have it. The loads of several tokens are under way at a
// time. All threads visit equally often: n may be beyond the last, and its numbers are 0 then.
template <int kNumbers, class T, class Visit>
__device__ inline void visit_tokens(const T* __restrict__ pages, const MortiseCudaHeads& heads,
                                    const AttentionPart& part, const int32_t* __restrict__ pages_of_row,
                                    const TokenLanes& own, const Visit& visit) {
  constexpr int kAhead = sizeof(T) == 4 ? 2 : kNumbers == 8 ? 3 : 4;  // as many as registers allow
  const int at_once = kThreads / own.lanes, turn = static_cast<int>(threadIdx.x) / own.lanes, dim = heads.head_dim;
  const int numbers_of_page = heads.num_kv_heads * kPageTokens * dim;
  for (int begin = 0; begin < part.count; begin += kAhead * at_once) {
    LaneNumbers<T, kNumbers> ahead[kAhead];
    MORTISE_UNROLL
    for (int a = 0; a < kAhead; ++a) {
      const int n = begin + a * at_once + turn;
      if (n >= part.count) continue;
      const int token = part.first + n, in_page = (part.kv_head * kPageTokens + token % kPageTokens) * dim;
      const int64_t page = pages_of_row[token / kPageTokens];
      load_numbers(pages + page * numbers_of_page + in_page, own.at, dim, ahead[a]);
    }
    MORTISE_UNROLL
    for (int a = 0; a < kAhead; ++a) {
      if (begin + a * at_once >= part.count) break;
      visit(begin + a * at_once + turn, ahead[a]);
    }
  }
}

// Adds x over the lanes of a warp whose numbers differ in the bits from `high` down to `low`, in a fixed order. Each bit halves
// the numbers that a lane holds, x[0] and those behind it, so that few are exchanged. The last one stays in several lanes.
template <int kCount>
__device__ inline void add_and_share(float (&x)[kCount], int high, int low) {
  MORTISE_UNROLL
  for (int step = 0; step < 5; ++step) {
    const int bit = high >> step, half = kCount >> (step + 1);
    if (bit < low) break;
    const bool is_upper = (static_cast<int>(threadIdx.x) & bit) != 0;
    if (half == 0) x[0] += __shfl_xor_sync(0xffffffffU, x[0], bit);
    float given[kCount / 2] = {};
    MORTISE_UNROLL
    for (int i = 0; i < kCount / 2; ++i)
      if (i < half) given[i] = is_upper ? x[i] : x[half + i];
    if (half > 0) shuffle_all(given, half, bit);
    MORTISE_UNROLL
    for (int i = 0; i < kCount / 2; ++i)
      if (i < half) x[i] = (is_upper ? x[half + i] : x[i]) + given[i];
  }
}

// The place of the first number that a lane holds then.
template <int kCount>
__device__ inline int first_of_share(int lane, int high, int low) {
  int first = 0;
  MORTISE_UNROLL
  for (int step = 0; step < 5; ++step)
    if (high >> step >= low && (lane & high >> step) != 0) first += kCount >> (step + 1);
  return first;
}

// weights[token kHeads + head]: the scores of the part. `q`: the part's first query.
template <int kHeads, class T, class Shared>
__device__ inline void score_tokens(const float* __restrict__ q, const T* __restrict__ keys,
                                    const MortiseCudaHeads& heads, const MortiseCudaScores& scores,
                                    const AttentionPart& part, const int32_t* pages_of_row, Shared& weights) {
  constexpr int kNumbers = kLaneNumbers<kHeads>;
  const TokenLanes own = token_lanes<kNumbers>(heads.head_dim);
  float query[kHeads][kNumbers];
  MORTISE_UNROLL
  for (int head = 0; head < kHeads; ++head) {
    LaneNumbers<float, kNumbers> numbers;
    if (head < part.num_heads) load_numbers(q + head * heads.head_dim, own.at, heads.head_dim, numbers);
    MORTISE_UNROLL
    for (int i = 0; i < kNumbers; ++i) query[head][i] = rounded(numbers[i], scores.rounds != 0);
  }
  const int held = kHeads > own.lanes ? kHeads / own.lanes : 1, lane = static_cast<int>(threadIdx.x) % own.lanes;
  const int first = first_of_share<kHeads>(lane, own.lanes / 2, 1);
  const bool writes = own.lanes <= kHeads || lane % (own.lanes / kHeads) == 0;
  visit_tokens<kNumbers>(keys, heads, part, pages_of_row, own, [&](int token, const LaneNumbers<T, kNumbers>& key) {
    float sums[kHeads];
    MORTISE_UNROLL
    for (int head = 0; head < kHeads; ++head) {
      sums[head] = 0.0F;
      MORTISE_UNROLL
      for (int i = 0; i < kNumbers; ++i) sums[head] += query[head][i] * key[i];
    }
    add_and_share(sums, own.lanes / 2, 1);
    if (token >= part.count || !writes) return;
    MORTISE_UNROLL
    for (int i = 0; i < kHeads; ++i) {
      if (i >= held) continue;
      float score = sums[i] * scores.scale;
      if (scores.softcap > 0.0F) score = scores.softcap * tanhf(score / scores.softcap);
      weights[token * kHeads + first + i] = score;
    }
  });
}

// The scores become exp(score - largest of the head). The largest and the sum of each head go to out[head next_head + 0 and 1].
template <int kHeads, class Shared>
__device__ inline void weigh_tokens(Shared& weights, const AttentionPart& part, float* out, int64_t next_head) {
  MORTISE_SHARED(float, maxima, kWarps* kHeads);
  MORTISE_SHARED(float, totals, kWarps* kHeads);
  const int head = static_cast<int>(threadIdx.x) % kHeads, warp = static_cast<int>(threadIdx.x) / 32;
  const int place = warp * kHeads + head, count = part.count * kHeads;
  const bool is_first = static_cast<int>(threadIdx.x) % 32 < kHeads;
  float own[kHeads], most = -INFINITY, total = 0.0F;
  MORTISE_UNROLL
  for (int i = 0; i < kHeads; ++i) {
    const int at = static_cast<int>(threadIdx.x) + i * kThreads;
    own[i] = at < count ? static_cast<float>(weights[at]) : -INFINITY;
    most = fmaxf(most, own[i]);
  }
  for (int bit = 16; bit >= kHeads; bit /= 2) most = fmaxf(most, __shfl_xor_sync(0xffffffffU, most, bit));
  if (is_first) maxima[place] = most;
  __syncthreads();
  for (int w = 0; w < kWarps; ++w) most = fmaxf(most, maxima[w * kHeads + head]);
  MORTISE_UNROLL
  for (int i = 0; i < kHeads; ++i) {
    const int at = static_cast<int>(threadIdx.x) + i * kThreads;
    if (at >= count) continue;
    const float weight = expf(own[i] - most);
    weights[at] = weight;
    total += weight;
  }
  for (int bit = 16; bit >= kHeads; bit /= 2) total += __shfl_xor_sync(0xffffffffU, total, bit);
  if (is_first) totals[place] = total;
  __syncthreads();
  if (static_cast<int>(threadIdx.x) >= part.num_heads) return;
  total = 0.0F;
  for (int w = 0; w < kWarps; ++w) total += totals[w * kHeads + head];
  out[head * next_head] = most;
  out[head * next_head + 1] = total;
}

// The values' sums, from those of each thread, sums[head kNumbers + i], to out[head next_head + 2 and more].
template <int kHeads>
__device__ inline void add_threads(float (&sums)[kHeads * kLaneNumbers<kHeads>], const TokenLanes& own, int dim,
                                   int num_heads, float* out, int64_t next_head) {
  constexpr int kNumbers = kLaneNumbers<kHeads>, kCount = kHeads * kNumbers, kRound = kCount < 16 ? kCount : 16;
  MORTISE_SHARED(float, of_warps, kWarps * 32 * kRound);
  const int thread = static_cast<int>(threadIdx.x), held = kCount * own.lanes / 32;
  add_and_share(sums, 16, own.lanes);
  MORTISE_UNROLL
  for (int from = 0; from < kCount; from += kRound) {
    if (from >= held) break;
    const int here = held - from < kRound ? held - from : kRound;
    MORTISE_UNROLL
    for (int i = 0; i < kRound; ++i)
      if (i < here) of_warps[(thread / 32 * kRound + i) * 32 + thread % 32] = sums[from + i];
    __syncthreads();
    for (int n = thread; n < here * 32; n += kThreads) {
      float total = 0.0F;
      for (int w = 0; w < kWarps; ++w) total += of_warps[w * 32 * kRound + n];
      const int lane = n % 32, number = first_of_share<kCount>(lane, 16, own.lanes) + from + n / 32;
      const int head = number / kNumbers, d = lane % own.lanes * kNumbers + number % kNumbers;
      if (head < num_heads && d < dim) out[head * next_head + 2 + d] = total;
    }
    __syncthreads();
  }
}

// One block per (row, kv head, split), or several if more than kHeads query heads share a kv head.
// A split is [D + 2] floats for each query head: the largest score, the sum of exp(score - largest), and the values' sum with
// these weights.
template <class T, int kHeads>
__global__ void __launch_bounds__(kThreads, 2)
    attention_split_kernel(const float* __restrict__ qkv, MortiseCudaHeads heads, MortiseCudaScores scores,
                           const int64_t* __restrict__ positions, const int32_t* __restrict__ table,
                           int64_t table_stride, const T* __restrict__ keys, const T* __restrict__ values,
                           int32_t num_splits, float* splits) {
  constexpr int kNumbers = kLaneNumbers<kHeads>;
  MORTISE_SHARED(float, weights, kSplitTokens* kHeads);
  const AttentionPart part = part_of_block(heads, scores.window, positions, num_splits, kHeads);
  const int64_t next_head = int64_t{num_splits} * (heads.head_dim + 2);
  float* const out = splits + (part.row * heads.num_heads + part.head) * next_head + part.split * (heads.head_dim + 2);
  if (part.count == 0) {  // no token of this split is seen
    const int head = static_cast<int>(threadIdx.x);
    if (head < part.num_heads) out[head * next_head] = -INFINITY, out[head * next_head + 1] = 0.0F;
    return;
  }
  const int32_t* const pages_of_row = table + part.row * table_stride;
  const float* const q =
      qkv + (part.row * (heads.num_heads + 2 * heads.num_kv_heads) + part.head) * int64_t{heads.head_dim};
  score_tokens<kHeads>(q, keys, heads, scores, part, pages_of_row, weights);
  __syncthreads();
  weigh_tokens<kHeads>(weights, part, out, next_head);
  const TokenLanes own = token_lanes<kNumbers>(heads.head_dim);
  float sums[kHeads * kNumbers] = {};
  visit_tokens<kNumbers>(values, heads, part, pages_of_row, own, [&](int token, const LaneNumbers<T, kNumbers>& value) {
    if (token >= part.count) return;
    MORTISE_UNROLL
    for (int head = 0; head < kHeads; ++head) {
      const float weight = weights[token * kHeads + head];
      MORTISE_UNROLL
      for (int i = 0; i < kNumbers; ++i) sums[head * kNumbers + i] += weight * value[i];
    }
  });
  add_threads<kHeads>(sums, own, heads.head_dim, part.num_heads, out, next_head);
}

// One warp per (row, query head): adds the splits in their order, and the head's sink.
template <class T>
__global__ void __launch_bounds__(kThreads)
    attention_merge_kernel(const float* __restrict__ splits, int64_t num_row_heads, MortiseCudaHeads heads,
                           const float* __restrict__ sinks, int32_t num_splits, T* out) {
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
    store(value / total, out + index * dim + d);
  }
}

}  // namespace mortise::cuda
