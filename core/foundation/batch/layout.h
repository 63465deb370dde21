// Layout: how the rows of a batch lie in flat per-token arrays (the same in sdk/include/mortise/tensor.h).
//
// N tokens of B rows; row i is the tokens row_offsets[i] .. row_offsets[i+1]. Borrowed spans.
#pragma once

#include <cstdint>
#include <span>

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

}  // namespace mortise
