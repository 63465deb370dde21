// JoinedState: the snapshots of all ranks as one, for tests. Every number of a tensor that ranks save together must come
// exactly once, and what every rank has must have the same bits.
#pragma once

#include <gtest/gtest.h>

#include <cstring>
#include <map>
#include <mutex>
#include <string>

#include "foundation/base/stateful.h"
#include "foundation/base/tensor_pieces.h"
#include "support/temp_dir.h"

namespace mortise::test {

class JoinedState {
 public:
  void add(const StateSnapshot& snapshot) {
    const std::lock_guard lock(mutex_);
    for (const auto& [object, values] : snapshot.scalars) scalars_[object] = values;
    for (const TensorView& view : snapshot.tensors) add(view);
  }
  // Borrows from this object.
  StateSnapshot snapshot() {
    StateSnapshot out;
    out.scalars = scalars_;
    for (auto& [name, tensor] : tensors_) {
      EXPECT_EQ(tensor.num_given, num_elements(tensor.view.shape).value()) << name;
      tensor.view.source = nullptr;
      tensor.view.bytes = std::as_bytes(std::span(tensor.bytes));
      out.tensors.push_back(tensor.view);
    }
    return out;
  }

 private:
  struct Joined {
    TensorView view;
    std::string bytes;
    int64_t num_given = 0;
  };

  void add(const TensorView& view) {
    const auto* const ranked = dynamic_cast<const RankedTensor*>(view.source.get());
    const int64_t all = num_elements(view.shape).value();
    const bool is_piece = ranked != nullptr && !ranked->is_everywhere();
    const int64_t count = is_piece ? ranked->count() : all;
    const std::vector<NumberRange> ranges = is_piece ? ranked->ranges() : std::vector<NumberRange>{{0, all}};
    const auto width = static_cast<int64_t>(dtype_bytes(view.dtype));
    std::string bytes(static_cast<size_t>(count * width), '\0');
    const TensorView& from = is_piece ? ranked->own() : view;
    if (count > 0) {
      ASSERT_OK(read_tensor_bytes(from, 0, std::as_writable_bytes(std::span(bytes))));
    }
    Joined& joined = tensors_[view.name];
    if (joined.view.name.empty()) {
      joined.view = view;
      joined.bytes.assign(static_cast<size_t>(all * width), '\0');
    }
    if (!is_piece && joined.num_given > 0) {
      EXPECT_EQ(joined.bytes == bytes, true) << view.name << " differs from rank to rank";
      return;
    }
    joined.num_given += count;
    if (is_piece && ranked->num_columns() > 0) {
      const int64_t num_rows = count / ranked->num_columns(), row = all / num_rows * width;
      const int64_t own_row = ranked->num_columns() * width, begin = ranges.front().begin * width;
      for (int64_t i = 0; i < num_rows; ++i)
        std::memcpy(joined.bytes.data() + i * row + begin, bytes.data() + i * own_row, static_cast<size_t>(own_row));
      return;
    }
    int64_t at = 0;
    for (const NumberRange& range : ranges) {
      std::memcpy(joined.bytes.data() + range.begin * width, bytes.data() + at * width,
                  static_cast<size_t>(range.count * width));
      at += range.count;
    }
  }

  std::mutex mutex_;
  std::map<std::string, std::map<std::string, StateScalar>> scalars_;
  std::map<std::string, Joined> tensors_;
};

}  // namespace mortise::test
