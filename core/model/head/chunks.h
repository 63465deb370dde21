// What the passes through the head share: how many tokens they take at once, and what that costs. Private to this
// folder. Thread rule: pure functions.
#pragma once

#include <ATen/core/Tensor.h>

#include <algorithm>
#include <cstdint>
#include <span>

#include "model/head/log_prob_head.h"

namespace mortise {

inline constexpr int64_t kMinChunkRows = 64;  // fewer, and traffic of the weights outweighs the products

// Tokens of a chunk, out of `num_rows`, if one token takes `row_bytes`.
inline int64_t head_chunk_rows(int64_t num_rows, int64_t row_bytes, int64_t most, const HeadOptions& options) {
  return std::min(std::max<int64_t>(1, num_rows), std::clamp(options.chunk_bytes / row_bytes, kMinChunkRows, most));
}

inline int64_t num_column_blocks(int64_t vocab, int64_t block_columns) {
  return (vocab + block_columns - 1) / block_columns;
}

// A chunk whose gradients are all 0 is skipped.
inline bool any_nonzero(std::span<const double> values) {
  return std::any_of(values.begin(), values.end(), [](double value) { return value != 0.0; });
}

template <class T>
T* data_or_null(const at::Tensor& tensor) {
  return tensor.defined() ? tensor.mutable_data_ptr<T>() : nullptr;
}

}  // namespace mortise
