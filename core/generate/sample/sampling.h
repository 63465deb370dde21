// From one row of logits to one token and its log-probability.
//
// Order and meaning are those of transformers: end ids that are barred go first, then temperature, top_k (ties with the
// k-th stay), top_p (the tail whose mass in ascending order stays within 1 - top_p goes; among equals the lower index
// goes first), min_p (below min_p times the best). Temperature 0 takes the largest logit, the lowest index among
// equals. Cost: without top_k/top_p/min_p two levels of sums that the head has already made; with them one pass over
// the row and a selection, never a sort of the vocabulary. sample_plain is the judge: doubles and a full sort. Thread
// rule: pure functions; `scratch` belongs to one thread.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "generate/kernels/kernels.h"

namespace mortise {

inline constexpr int64_t kChunkLogits = 128;  // vocabulary entries whose maximum and sum of exp the head keeps

struct SamplingParams {
  int64_t max_new_tokens = 16;
  int64_t min_new_tokens = 0;
  double temperature = 1.0;  // 0: greedy
  int64_t top_k = 0;         // <= 0: off
  double top_p = 1.0;        // 1: off
  double min_p = 0.0;        // 0: off
  bool ignore_eos = false;
  std::vector<int64_t> stop_ids;

  [[nodiscard]] bool greedy() const { return temperature == 0.0; }
  [[nodiscard]] bool filters() const { return !greedy() && (top_k > 0 || top_p < 1.0 || min_p > 0.0); }
  // What logits are multiplied with before exp; 1 when greedy.
  [[nodiscard]] float inverse_temperature() const { return greedy() ? 1.0F : static_cast<float>(1.0 / temperature); }
  // The end ids that may not come as token number `position` of the completion.
  [[nodiscard]] std::span<const int64_t> barred(int64_t position) const {
    if (ignore_eos || position < min_new_tokens) return stop_ids;
    return {};
  }
};

// A row of logits and its chunks' statistics. The row is padded with -inf to whole panels of 32.
struct LogitRow {
  const float* logits = nullptr;
  int64_t vocab_size = 0;
  int64_t padded_size = 0;
  const float* chunk_max = nullptr;  // [chunks] largest logit of each chunk of kChunkLogits
  const float* chunk_sum = nullptr;  // [chunks] sum of exp((logit - chunk_max) * inverse_temperature)
};

struct SampledToken {
  int64_t id = 0;
  float log_prob = 0;           // at temperature (1 when greedy) over the whole vocabulary
  float filtered_log_prob = 0;  // after barring, top_k, top_p, min_p
};

struct SamplingScratch {
  std::vector<float> floats;
  std::vector<double> doubles;
  std::vector<int64_t> indices;
};

// `uniform` in [0, 1) picks the token. Barred ids lie in [0, vocab_size).
SampledToken sample_token(const Kernels& kernels, const LogitRow& row, const SamplingParams& params,
                          std::span<const int64_t> barred, double uniform, SamplingScratch& scratch);

// The judge. Looks at row.logits[0 .. vocab_size) only.
SampledToken sample_plain(std::span<const float> logits, const SamplingParams& params, std::span<const int64_t> barred,
                          double uniform);

}  // namespace mortise
