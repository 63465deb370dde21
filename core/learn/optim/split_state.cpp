// See split_state.h.
#include "learn/optim/split_state.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <vector>

#include "learn/optim/tensor_state.h"
#include "model/weights/weight_files.h"

namespace mortise {

namespace {

std::vector<int64_t> whole_sizes(const ModelPart& part, size_t parameter) { return part.whole_sizes(parameter).vec(); }

// The columns that a rank has if all dimensions before them are the rows of a matrix.
MatrixColumns columns_of(const TensorSplit& split, int64_t rank, const at::Tensor& own) {
  int64_t numbers = 1;  // those of each
  for (int64_t dim = split.dim() + 1; dim < own.dim(); ++dim) numbers *= own.size(dim);
  const SplitRange& range = split.ranges.front();
  return {range.begin_on(rank) * numbers, range.size * numbers};
}

// Some rows of the whole at a time, of which this rank keeps its columns.
Result<> read_columns(const TensorView& view, at::ScalarType type, const TensorSplit& split, int64_t rank,
                      const at::Tensor& own) {
  const MatrixColumns columns = columns_of(split, rank, own);
  const at::Tensor part = own.view({-1, columns.count});
  const int64_t width = num_elements(view.shape).value_or(0) / part.size(0);
  const int64_t rows_at_once = std::max<int64_t>(1, (int64_t{1} << 20) / width);
  for (int64_t row = 0; row < part.size(0); row += rows_at_once) {
    const int64_t count = std::min(rows_at_once, part.size(0) - row);
    const at::Tensor rows = at::empty({count, width}, own.options());
    TRY(copy_numbers(view, type, row * width, rows));
    part.narrow(0, row, count).copy_(rows.narrow(1, columns.begin, columns.count));
  }
  return {};
}

// What this rank counts for of what is split, as a piece of the whole.
std::shared_ptr<RankedTensor> piece_of(const TensorSplit& split, int64_t rank, const at::Tensor& own, bool is_in_file) {
  const TensorView view = view_for_save(split.counted(own, rank), is_in_file);
  if (split.axis == SplitAxis::kColumns) return std::make_shared<RankedTensor>(view, columns_of(split, rank, own));
  const int64_t row = own.numel() / own.size(0);
  std::vector<NumberRange> ranges;
  for (const SplitRange& range : split.ranges) {
    if (range.is_first(rank)) ranges.push_back({range.begin_on(rank) * row, range.size_on(rank) * row});
  }
  return std::make_shared<RankedTensor>(view, std::move(ranges));
}

std::shared_ptr<RankedTensor> no_piece(DType dtype) {
  return std::make_shared<RankedTensor>(TensorView{"", dtype, {0}, {}, nullptr}, 0, 0);
}

}  // namespace

void put_part(StateWriter& writer, std::string_view key, const ModelPart& part, size_t parameter, const at::Tensor& own,
              bool is_in_file) {
  const TensorSplit& split = part.split(parameter);
  const TensorView view = view_for_save(own, is_in_file);
  if (!split.is_split()) return put_whole(writer, key, view, /*is_alone=*/false);
  const int64_t rank = part.ranks()->rank();
  const bool writes = static_cast<int>(parameter) % part.ranks()->num_groups() == part.ranks()->group();
  const std::shared_ptr<RankedTensor> ranked = writes ? piece_of(split, rank, own, is_in_file) : no_piece(view.dtype);
  ranked->hold_in_common(view);
  writer.put_source(key, view.dtype, whole_sizes(part, parameter), ranked);
}

void put_owned_part(StateWriter& writer, std::string_view key, const ModelPart& part, size_t parameter,
                    const at::Tensor& own, bool is_in_file) {
  const TensorSplit& split = part.split(parameter);
  const int64_t rank = part.ranks()->rank();
  const TensorView view = view_for_save(own, is_in_file);
  if (!split.is_split() && rank != 0) return put_nothing(writer, key, part, parameter, view.dtype);
  const std::shared_ptr<RankedTensor> ranked =
      split.is_split() ? piece_of(split, rank, own, is_in_file) : std::make_shared<RankedTensor>(view, 0, own.numel());
  writer.put_source(key, view.dtype, whole_sizes(part, parameter), ranked);
}

void put_nothing(StateWriter& writer, std::string_view key, const ModelPart& part, size_t parameter, DType dtype) {
  writer.put_source(key, dtype, whole_sizes(part, parameter), no_piece(dtype));
}

Result<> read_part(StateReader& reader, std::string_view key, const ModelPart& part, size_t parameter,
                   const at::Tensor& own) {
  const TensorSplit& split = part.split(parameter);
  const at::ScalarType type = own.scalar_type();
  const TensorView view = TRY(reader.get_tensor(key, dtype_of_scalar(type), whole_sizes(part, parameter)));
  const int64_t rank = part.ranks()->rank();
  if (split.axis == SplitAxis::kColumns) return read_columns(view, type, split, rank, own);
  if (!split.is_split()) return copy_numbers(view, type, 0, own);
  const int64_t row = own.numel() / std::max<int64_t>(1, own.size(0));
  for (size_t i = 0; i < split.ranges.size(); ++i) {
    const SplitRange& range = split.ranges[i];
    TRY(copy_numbers(view, type, range.begin_on(rank) * row, split.range_of(own, i).narrow(0, 0, range.size_on(rank))));
  }
  return {};
}

Result<> check_part(StateReader& reader, std::string_view key, const ModelPart& part, size_t parameter, DType dtype) {
  TRY(reader.get_tensor(key, dtype, whole_sizes(part, parameter)));
  return {};
}

// What all ranks of the group have counts once. Of the rest each rank has a term, or its neighbour has it.
Result<double> grad_norm_of_parts(const std::vector<OptimizedParameter>& parameters, std::span<const double> norms,
                                  const ModelPart& part) {
  TensorRanks& ranks = *part.ranks();
  double common = 0.0;
  const at::Tensor own = at::zeros({1}, at::kDouble), all = at::zeros({ranks.size()}, at::kDouble);
  for (size_t i = 0; i < parameters.size(); ++i) {
    const TensorSplit& split = part.split(part.find(parameters[i].name));
    (split.is_split() ? *own.mutable_data_ptr<double>() : common) += norms[i] * norms[i];
  }
  ranks.gather(own, all);
  TRY(ranks.status());
  for (int rank = 0; rank < ranks.size(); ++rank) common += all.const_data_ptr<double>()[rank];
  return std::sqrt(common);
}

}  // namespace mortise
