// Ranks that share the layers of a model (model/layers/tensor_ranks.h) have the same hidden states of all samples. Each
// computes the head for some of them, draws their tokens, and tells the others. No rank draws a token of another, so
// their completions cannot differ.
//
// Cost: 24 bytes per sample and rank. Thread rule: gather_tokens is a collective of the ranks.
#pragma once

#include <cstddef>
#include <span>

#include "generate/sample/sampling.h"
#include "model/layers/tensor_ranks.h"

namespace mortise {

struct TokenShare {
  size_t begin = 0, end = 0;
  [[nodiscard]] size_t size() const { return end - begin; }
};

// The samples, out of `count`, for which a rank draws.
[[nodiscard]] constexpr TokenShare token_share(size_t count, int rank, int num_ranks) {
  const auto part = static_cast<size_t>(rank), parts = static_cast<size_t>(num_ranks);
  return {count * part / parts, count * (part + 1) / parts};
}

// The same of this rank; null: it draws for all.
[[nodiscard]] inline TokenShare token_share(size_t count, const TensorRanks* ranks) {
  return ranks == nullptr ? TokenShare{0, count} : token_share(count, ranks->rank(), ranks->size());
}

// `tokens` has this rank's share; afterwards those of all ranks. An error is in ranks.status().
void gather_tokens(TensorRanks& ranks, std::span<SampledToken> tokens);

}  // namespace mortise
