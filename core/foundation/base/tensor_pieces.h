// Tensors that lie in pieces: on several ranks while a checkpoint is written, in several files when it is read.
// Thread rule: as TensorSource, one thread at a time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "foundation/base/tensor_view.h"

namespace mortise {

// The bytes of a tensor from `begin` on, from its memory or its source.
Result<> read_tensor_bytes(const TensorView& tensor, uint64_t begin, std::span<std::byte> out);

// Some neighbouring columns of a matrix, in all of its rows.
struct MatrixColumns {
  int64_t begin = 0, count = 0;
};

// What this rank has of a tensor that the ranks of a run save together. Either a range of its numbers or of its columns,
// whose rest other ranks have, or all of it. In the last case every rank has the same bits, and any of them may write the
// tensor.
class RankedTensor : public TensorSource {
 public:
  // Numbers [begin, begin + count) of the whole. `own` gives their bytes and outlives what it borrows from.
  RankedTensor(TensorView own, int64_t begin, int64_t count) : own_(std::move(own)), begin_(begin), count_(count) {}
  // `own` is a matrix of these columns.
  RankedTensor(TensorView own, const MatrixColumns& columns)
      : own_(std::move(own)),
        begin_(columns.begin),
        count_(own_.shape.empty() ? 0 : own_.shape[0] * columns.count),
        num_columns_(columns.count) {}
  explicit RankedTensor(TensorView whole) : own_(std::move(whole)), is_everywhere_(true) {}

  [[nodiscard]] bool is_everywhere() const { return is_everywhere_; }
  [[nodiscard]] const TensorView& own() const { return own_; }
  [[nodiscard]] int64_t begin() const { return begin_; }
  [[nodiscard]] int64_t count() const { return count_; }
  // 0: it has a range of numbers. Else begin() is the first of so many columns.
  [[nodiscard]] int64_t num_columns() const { return num_columns_; }
  // The numbers that some other ranks hold too, with the same bits. One of these ranks saves them. They borrow as `own`.
  // Null: no other rank has these numbers, or all ranks have them.
  void hold_in_common(TensorView held) { held_ = std::move(held); }
  [[nodiscard]] const TensorView* held() const { return held_ ? &*held_ : nullptr; }

  // Bytes of the whole tensor, so that one process can save what every rank has.
  Result<> read(uint64_t begin, std::span<std::byte> out) const override;

 private:
  TensorView own_;
  int64_t begin_ = 0, count_ = 0, num_columns_ = 0;
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
