// Tensors that lie in pieces: on several ranks while a checkpoint is written, in several files when it is read.
// Thread rule: as TensorSource, one thread at a time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <numeric>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "foundation/base/tensor_view.h"

namespace mortise {

// The bytes of a tensor from `begin` on, from its memory or its source.
Result<> read_tensor_bytes(const TensorView& tensor, uint64_t begin, std::span<std::byte> out);

// Some neighbouring columns of a matrix, in all of its rows. With more dimensions, the first ones are its rows, and the others
// its columns.
struct MatrixColumns {
  int64_t begin = 0, count = 0;
};

// Neighbouring numbers of a tensor.
struct NumberRange {
  int64_t begin = 0, count = 0;
};

// What this rank has of a tensor that the ranks of a run save together. Either ranges of its numbers or one of its columns,
// whose rest other ranks have, or all of it. In the last case every rank has the same bits, and any of them may write the
// tensor.
class RankedTensor : public TensorSource {
 public:
  // These numbers of the whole, in ascending order. `own` gives their bytes, one range behind the other, and outlives what it
  // borrows from.
  RankedTensor(TensorView own, std::vector<NumberRange> ranges) : own_(std::move(own)), ranges_(std::move(ranges)) {}
  RankedTensor(TensorView own, int64_t begin, int64_t count)
      : RankedTensor(std::move(own), std::vector<NumberRange>{{begin, count}}) {}
  // `own` has all numbers of these columns.
  RankedTensor(TensorView own, const MatrixColumns& columns)
      : own_(std::move(own)),
        ranges_({{columns.begin, num_elements(own_.shape).value_or(0)}}),
        num_columns_(columns.count) {}
  explicit RankedTensor(TensorView whole) : own_(std::move(whole)), is_everywhere_(true) {}

  [[nodiscard]] bool is_everywhere() const { return is_everywhere_; }
  [[nodiscard]] const TensorView& own() const { return own_; }
  // Which numbers it has. Of columns: the first column, and how many numbers they are.
  [[nodiscard]] const std::vector<NumberRange>& ranges() const { return ranges_; }
  // All numbers that it has.
  [[nodiscard]] int64_t count() const {
    return std::accumulate(ranges_.begin(), ranges_.end(), int64_t{0},
                           [](int64_t sum, const NumberRange& range) { return sum + range.count; });
  }
  // 0: it has ranges of numbers. Else so many columns.
  [[nodiscard]] int64_t num_columns() const { return num_columns_; }
  // The numbers that some other ranks hold too, with the same bits. One of these ranks saves them. They borrow as `own`.
  // Null: no other rank has these numbers, or all ranks have them.
  void hold_in_common(TensorView held) { held_ = std::move(held); }
  [[nodiscard]] const TensorView* held() const { return held_ ? &*held_ : nullptr; }

  // Bytes of the whole tensor, so that one process can save what every rank has.
  Result<> read(uint64_t begin, std::span<std::byte> out) const override;

 private:
  TensorView own_;
  std::vector<NumberRange> ranges_;
  int64_t num_columns_ = 0;
  bool is_everywhere_ = false;
  std::optional<TensorView> held_;
};

// A tensor whose bytes lie one behind another in several places, which are borrowed.
class JoinedTensor : public TensorSource {
 public:
  explicit JoinedTensor(std::vector<std::span<const std::byte>> pieces) : pieces_(std::move(pieces)) {}
  Result<> read(uint64_t begin, std::span<std::byte> out) const override;

 private:
  std::vector<std::span<const std::byte>> pieces_;
};

// A matrix whose columns lie in several places, each with all rows of some neighbouring columns. Borrowed.
class JoinedColumns : public TensorSource {
 public:
  JoinedColumns(std::vector<std::span<const std::byte>> pieces, uint64_t num_rows);
  Result<> read(uint64_t begin, std::span<std::byte> out) const override;

 private:
  std::vector<std::span<const std::byte>> pieces_;
  uint64_t num_rows_, row_bytes_ = 0;
};

}  // namespace mortise
