// What the earlier tokens of a row change in its logits, before filters and the draw: penalties for repeated tokens, tokens
// that may not come (core/foundation/batch/token_history.h), and tokens that a pattern does not allow. One block per row; a
// row without edits costs nothing.
#pragma once

#include "cuda/kernels/logit_rows.cuh"

namespace mortise::cuda {

__device__ inline bool changes_logits(const MortiseCudaEdits& edits) {
  return edits.seen != nullptr || edits.num_words > 0 || edits.num_ends > 0 || edits.allowed != nullptr;
}

// As `penalised` in core/foundation/batch/token_history.h. `seen` is not 0.
__device__ inline float with_penalties(float logit, int32_t seen, const MortiseCudaEdits& edits) {
  auto out = static_cast<double>(logit);
  out = out < 0 ? out * edits.repetition : out / edits.repetition;
  out -= edits.frequency * static_cast<double>(seen - 1);
  if (seen > 1) out -= edits.presence;
  return static_cast<float>(out);
}

// The model's own log-prob: that of the row without edits.
__device__ inline double own_log_prob(float logit, float inverse_temperature, const MortiseCudaTotal& total) {
  return static_cast<double>((logit - total.best) * inverse_temperature) - log(total.sum);
}

// Whether the tokens before the last one of a word came just now.
__device__ inline bool comes_next(const MortiseCudaEdits& edits, const int32_t* word, int32_t length) {
  for (int32_t t = 0; t + 1 < length; ++t)
    if (edits.tail[edits.tail_size - (length - 1) + t] != word[t]) return false;
  return true;
}

// By one thread: the row has this token now.
__device__ inline void note_token(const MortiseCudaEdits& edits, int32_t token) {
  if (edits.seen != nullptr) edits.seen[token] = edits.seen[token] == 0 ? 2 : edits.seen[token] + 1;
  for (int32_t t = 0; t + 1 < edits.tail_size; ++t) edits.tail[t] = edits.tail[t + 1];
  if (edits.tail_size > 0) edits.tail[edits.tail_size - 1] = token;
}

__global__ void __launch_bounds__(kThreads)
    edit_kernel(const float* __restrict__ logits, int64_t stride, int32_t vocab,
                const MortiseCudaDraw* __restrict__ draws, MortiseCudaEdited edited) {
  const MortiseCudaEdits edits = edited.edits[blockIdx.x];
  if (!changes_logits(edits)) return;  // the whole block
  const float* const own = logits + blockIdx.x * stride;
  float* const out = edited.logits + blockIdx.x * int64_t{vocab};
  const float inverse_temperature = draws[blockIdx.x].inverse_temperature;
  float best = 0.0F;
  int32_t place = 0;
  best_of(own, vocab, best, place);
  double sum = 0;
  for (int32_t i = static_cast<int32_t>(threadIdx.x); i < vocab; i += kThreads) {
    sum += static_cast<double>(expf((own[i] - best) * inverse_temperature));
    const int32_t seen = edits.seen != nullptr ? edits.seen[i] : 0;
    out[i] = seen == 0 ? own[i] : with_penalties(own[i], seen, edits);
  }
  // A thread bars the tokens that it has written itself.
  const auto bar = [&](int32_t id) {
    if (id % kThreads == static_cast<int32_t>(threadIdx.x)) out[id] = -INFINITY;
  };
  // Read again and not unrolled, so that the loop above has all registers.
  const uint32_t* const allowed = edited.edits[blockIdx.x].allowed;
  if (allowed != nullptr) {
    MORTISE_NO_UNROLL
    for (int32_t i = static_cast<int32_t>(threadIdx.x); i < vocab; i += kThreads)
      if ((allowed[i / 32] >> (i % 32) & 1U) == 0) out[i] = -INFINITY;
  }
  for (int32_t e = 0; e < edits.num_ends; ++e) bar(edits.ends[e]);
  const int32_t* word = edits.words;
  for (int32_t w = 0; w < edits.num_words; ++w, word += 1 + word[0])
    if (comes_next(edits, word + 1, word[0])) bar(word[word[0]]);
  sum = block_total(sum);
  if (threadIdx.x == 0) edited.totals[blockIdx.x] = {sum, best};
}

}  // namespace mortise::cuda
