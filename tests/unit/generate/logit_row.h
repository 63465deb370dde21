// A LogitRow made from plain logits, as the head makes it.
#pragma once

#include <algorithm>
#include <limits>
#include <vector>

#include "generate/sample/sampling.h"

namespace mortise {

struct OwnedLogitRow {
  OwnedLogitRow(std::vector<float> logits, const Kernels& kernels, float inverse_temperature)
      : values(std::move(logits)), vocab_size(static_cast<int64_t>(values.size())) {
    values.resize((values.size() + 31) / 32 * 32, -std::numeric_limits<float>::infinity());
    const auto padded = static_cast<int64_t>(values.size());
    for (int64_t begin = 0; begin < padded; begin += kChunkLogits) {
      chunk_max.emplace_back();
      chunk_sum.emplace_back();
      kernels.exp_sum(values.data() + begin, std::min(kChunkLogits, padded - begin), inverse_temperature,
                      &chunk_max.back(), &chunk_sum.back());
    }
  }
  [[nodiscard]] LogitRow view() const {
    return {values.data(), vocab_size, static_cast<int64_t>(values.size()), chunk_max.data(), chunk_sum.data()};
  }

  std::vector<float> values;
  int64_t vocab_size;
  std::vector<float> chunk_max, chunk_sum;
};

}  // namespace mortise
