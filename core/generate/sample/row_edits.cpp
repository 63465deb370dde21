// See row_edits.h.
#include "generate/sample/row_edits.h"

#include <algorithm>
#include <limits>

namespace mortise {

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
  for (const int64_t id : edits.barred) set(id, -std::numeric_limits<float>::infinity());
  std::ranges::sort(changed);
  changed.erase(std::ranges::unique(changed).begin(), changed.end());
  for (const int64_t c : changed) {
    const int64_t begin = c * kChunkLogits;
    const auto place = static_cast<size_t>(c);
    kernels.exp_sum(scratch.logits.data() + begin, std::min(kChunkLogits, row.padded_size - begin),
                    params.inverse_temperature(), &scratch.chunk_max[place], &scratch.chunk_sum[place]);
  }
  return {scratch.logits.data(), row.vocab_size, row.padded_size, scratch.chunk_max.data(), scratch.chunk_sum.data()};
}

}  // namespace mortise
