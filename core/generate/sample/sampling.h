// From one row of logits to one token and its log-probability.
//
// Order and meaning are those of transformers: penalties, forbidden tokens and patterns first (row_edits.h), then temperature,
// top_k (ties with the k-th remain), top_p (drops the tail whose mass in ascending order is within 1 - top_p; among
// equals the lower index first), min_p (drops tokens below min_p times the best), typical_p (keeps the tokens whose
// information is nearest to the entropy of the rest, up to that mass). Temperature 0 takes the largest logit, and the
// lowest index among equals.
// Cost: without filters two levels of sums, which the head has already made. With filters one pass over the row and a
// selection, never a sort of the vocabulary. Penalties copy the row. sample_plain is the reference implementation:
// doubles and a full sort. Thread rule: pure functions; `scratch` belongs to one thread.
#pragma once

#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "foundation/batch/sampling.h"
#include "foundation/batch/token_history.h"
#include "generate/kernels/kernels.h"

namespace mortise {

inline constexpr int64_t kChunkLogits = 128;  // vocabulary entries with one maximum and one sum of exp from the head

using SamplingParams = Sampling;

// A row of logits and its chunks' statistics. The row is padded with -inf to whole panels of 32.
struct LogitRow {
  const float* logits = nullptr;
  int64_t vocab_size = 0;
  int64_t padded_size = 0;
  const float* chunk_max = nullptr;  // [chunks] largest logit of each chunk of kChunkLogits
  const float* chunk_sum = nullptr;  // [chunks] sum of exp((logit - chunk_max) * inverse_temperature)
};

struct TokenLogProb {
  int64_t id = 0;
  float log_prob = 0;
  bool operator==(const TokenLogProb&) const = default;
};

inline constexpr int64_t kNotDrawn = -1;

struct SampledToken {
  int64_t id = 0;               // kNotDrawn: a step drew none for this sample
  float log_prob = 0;           // at temperature (1 if greedy) over the whole vocabulary, as the model gives it
  float filtered_log_prob = 0;  // by what the token was drawn from: after penalties, bars and filters
};

// What one draw depends on in addition to the row.
struct DrawInput {
  const SamplingParams* params = nullptr;
  TokenEdits edits{};  // ids are in [0, vocab_size)
  double uniform = 0;  // in [0, 1): picks the token
};

struct SamplingScratch {
  std::vector<float> floats;
  std::vector<double> doubles;
  std::vector<int64_t> indices;
  std::vector<std::pair<double, double>> distances;  // typical_p: (distance, mass)
  // The row as penalties and bars change it.
  std::vector<float> logits, chunk_max, chunk_sum;
};

SampledToken sample_token(const Kernels& kernels, const LogitRow& row, const DrawInput& input,
                          SamplingScratch& scratch);
// The `count` likeliest tokens (fewer where the vocabulary has not so many) of the model's own distribution at
// temperature, best first, the lower id first among equals; appended.
void append_top_log_probs(const Kernels& kernels, const LogitRow& row, const SamplingParams& params, int64_t count,
                          SamplingScratch& scratch, std::vector<TokenLogProb>& out);

// The reference implementations. They read only logits[0 .. vocab_size).
SampledToken sample_plain(std::span<const float> logits, const DrawInput& input);
void append_top_log_probs_plain(std::span<const float> logits, const SamplingParams& params, int64_t count,
                                std::vector<TokenLogProb>& out);

}  // namespace mortise
