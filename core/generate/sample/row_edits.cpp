// See row_edits.h.
#include "generate/sample/row_edits.h"

#include <algorithm>
#include <limits>

namespace mortise {
namespace {

constexpr float kForbidden = -std::numeric_limits<float>::infinity();

// Statistics of a chunk of the copy.
void sum_chunk(const Kernels& kernels, const LogitRow& row, const SamplingParams& params, size_t chunk,
               SamplingScratch& scratch) {
  const int64_t begin = static_cast<int64_t>(chunk) * kChunkLogits;
  kernels.exp_sum(scratch.logits.data() + begin, std::min(kChunkLogits, row.padded_size - begin),
                  params.inverse_temperature(), &scratch.chunk_max[chunk], &scratch.chunk_sum[chunk]);
}

// Forbids what a pattern does not allow. Chunks of which nothing is left need no sum.
void keep_allowed(const Kernels& kernels, const LogitRow& row, const SamplingParams& params, const TokenEdits& edits,
                  SamplingScratch& scratch) {
  constexpr size_t kWords = kChunkLogits / 64;
  for (size_t chunk = 0; chunk < scratch.chunk_max.size(); ++chunk) {
    const size_t first = std::min(chunk * kWords, edits.allowed.size());
    const auto words = edits.allowed.subspan(first, std::min(kWords, edits.allowed.size() - first));
    const auto begin = static_cast<int64_t>(chunk) * kChunkLogits;
    if (std::ranges::all_of(words, [](uint64_t word) { return word == 0; })) {
      std::fill_n(scratch.logits.begin() + begin, std::min(kChunkLogits, row.padded_size - begin), kForbidden);
      scratch.chunk_max[chunk] = kForbidden;
      scratch.chunk_sum[chunk] = 0.0F;
      continue;
    }
    if (words.size() == kWords && std::ranges::all_of(words, [](uint64_t word) { return word == ~uint64_t{0}; }))
      continue;
    for (int64_t id = begin; id < std::min(row.vocab_size, begin + kChunkLogits); ++id)
      if (!edits.allows(id)) scratch.logits[static_cast<size_t>(id)] = kForbidden;
    sum_chunk(kernels, row, params, chunk, scratch);
  }
}

}  // namespace

LogitRow edit_row(const Kernels& kernels, const LogitRow& row, const SamplingParams& params, const TokenEdits& edits,
                  SamplingScratch& scratch) {
  const int64_t chunks = (row.padded_size + kChunkLogits - 1) / kChunkLogits;
  scratch.logits.assign(row.logits, row.logits + row.padded_size);
  scratch.chunk_max.assign(row.chunk_max, row.chunk_max + chunks);
  scratch.chunk_sum.assign(row.chunk_sum, row.chunk_sum + chunks);
  std::vector<int64_t>& changed = scratch.indices;  // chunks
  changed.clear();
  const auto set = [&](int64_t id, float logit) {
    scratch.logits[static_cast<size_t>(id)] = logit;
    changed.push_back(id / kChunkLogits);
  };
  if (params.penalises()) {
    for (const SeenToken& seen : edits.seen) set(seen.id, penalised(row.logits[seen.id], seen, params));
  }
  for (const int64_t id : edits.barred) set(id, kForbidden);
  std::ranges::sort(changed);
  changed.erase(std::ranges::unique(changed).begin(), changed.end());
  for (const int64_t c : changed) sum_chunk(kernels, row, params, static_cast<size_t>(c), scratch);
  if (!edits.allowed.empty()) keep_allowed(kernels, row, params, edits, scratch);
  return {scratch.logits.data(), row.vocab_size, row.padded_size, scratch.chunk_max.data(), scratch.chunk_sum.data()};
}

}  // namespace mortise
