// How the rows of a call lie in flat per-token tensors (sdk/include/mortise/tensor.h), and which cells of them count.
//
// Shapes: N tokens of B rows; row i is tokens row_offsets[i] .. row_offsets[i+1]. Borrowed spans.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>

namespace mortise {

struct Layout {
  std::span<const int64_t> row_offsets{};  // [B+1], ascending from 0 to N
  std::span<const int64_t> row_id{};       // [B] place in the whole update
  std::span<const int64_t> group_index{};  // [B] rows of one prompt share it

  [[nodiscard]] int64_t num_rows() const {
    return row_offsets.empty() ? 0 : static_cast<int64_t>(row_offsets.size()) - 1;
  }
  [[nodiscard]] int64_t num_tokens() const { return row_offsets.empty() ? 0 : row_offsets.back(); }
};

// The cells of an output that count: those whose mask is not 0, and where there are weights, their weight neither.
struct CountedCells {
  std::span<const uint8_t> mask;
  std::span<const float> weight{};  // empty: the mask alone
};
struct NamedOutput {
  std::string_view name;
  std::span<float> values;  // as long as the mask, or empty: not asked for
};

}  // namespace mortise
