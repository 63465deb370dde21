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

// Some rows of the whole at a time, of which this rank keeps its columns.
Result<> read_columns(const TensorView& view, at::ScalarType type, const TensorSplit& split, int64_t rank,
                      const at::Tensor& own) {
  const int64_t width = view.shape[1], rows_at_once = std::max<int64_t>(1, (int64_t{1} << 20) / width);
  for (int64_t row = 0; row < own.size(0); row += rows_at_once) {
    const int64_t count = std::min(rows_at_once, own.size(0) - row);
    const at::Tensor rows = at::empty({count, width}, own.options());
    TRY(copy_numbers(view, type, row * width, rows));
    own.narrow(0, row, count).copy_(split.part_of(rows, rank));
  }
  return {};
}

// This rank's numbers of what is split, as a piece of the whole.
std::shared_ptr<RankedTensor> piece_of(const TensorSplit& split, int64_t rank, const at::Tensor& own,
                                       const TensorView& view) {
  if (split.axis == SplitAxis::kColumns)
    return std::make_shared<RankedTensor>(view, MatrixColumns{split.begin(rank), split.size});
  const int64_t row = own.numel() / own.size(0);
  return std::make_shared<RankedTensor>(view, split.begin(rank) * row, own.numel());
}

std::shared_ptr<RankedTensor> no_piece(DType dtype) {
  return std::make_shared<RankedTensor>(TensorView{"", dtype, {0}, {}, nullptr}, 0, 0);
}

}  // namespace

void put_part(StateWriter& writer, std::string_view key, const ModelPart& part, size_t parameter,
              const at::Tensor& own) {
  const TensorSplit& split = part.split(parameter);
  const TensorView view = view_for_save(own, false);
  if (!split.is_split()) return put_whole(writer, key, view, /*is_alone=*/false);
  const int64_t rank = part.ranks()->rank();
  const bool writes = static_cast<int>(parameter) % part.ranks()->num_groups() == part.ranks()->group();
  const bool is_mine = writes && split.is_first(rank);
  const std::shared_ptr<RankedTensor> ranked = is_mine ? piece_of(split, rank, own, view) : no_piece(view.dtype);
  ranked->hold_in_common(view);
  writer.put_source(key, view.dtype, whole_sizes(part, parameter), ranked);
}

void put_owned_part(StateWriter& writer, std::string_view key, const ModelPart& part, size_t parameter,
                    const at::Tensor& own) {
  const TensorSplit& split = part.split(parameter);
  const int64_t rank = part.ranks()->rank();
  const TensorView view = view_for_save(own, false);
  const bool is_mine = split.is_split() ? split.is_first(rank) : rank == 0;
  if (!is_mine) return put_nothing(writer, key, part, parameter, view.dtype);
  const std::shared_ptr<RankedTensor> ranked =
      split.is_split() ? piece_of(split, rank, own, view) : std::make_shared<RankedTensor>(view, 0, own.numel());
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
  const int64_t first_row = split.is_split() ? split.begin(rank) : 0;
  return copy_numbers(view, type, first_row * (own.numel() / std::max<int64_t>(1, own.size(0))), own);
}

// What all ranks of the group have counts once. Of the rest each rank has a term, or its neighbour has it.
Result<double> grad_norm_of_parts(const std::vector<OptimizedParameter>& parameters, std::span<const double> norms,
                                  const ModelPart& part) {
  TensorRanks& ranks = *part.ranks();
  double common = 0.0;
  const at::Tensor own = at::zeros({1}, at::kDouble), all = at::zeros({ranks.size()}, at::kDouble);
  for (size_t i = 0; i < parameters.size(); ++i) {
    const TensorSplit& split = part.split(part.find(parameters[i].name));
    if (split.is_split() && !split.is_first(ranks.rank())) continue;
    (split.is_split() ? *own.mutable_data_ptr<double>() : common) += norms[i] * norms[i];
  }
  ranks.gather(own, all);
  TRY(ranks.status());
  for (int rank = 0; rank < ranks.size(); ++rank) common += all.const_data_ptr<double>()[rank];
  return std::sqrt(common);
}

}  // namespace mortise
