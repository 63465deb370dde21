// See tensor_group.h.
#include "learn/update/tensor_group.h"

#include <string_view>

namespace mortise {

namespace {

constexpr std::string_view kTensorStage = "tensor parallel";

}  // namespace

// The groups of neighbours of the whole run are those of this group, because its size is a multiple of theirs.
void TensorGroup::sum_of_neighbours(const at::Tensor& tensor, int size) {
  if (error_) return;
  const Result<> done = [&]() -> Result<> {
    return TRY(ranks_->neighbours(size))->all_reduce_sum(tensor, kTensorStage);
  }();
  if (!done.ok()) error_ = done.error();
}

void TensorGroup::gather(const at::Tensor& input, const at::Tensor& output) {
  if (error_) return;
  const Result<> done = [&]() -> Result<> {
    return TRY(ranks_->neighbours(size_))->all_gather(input, output, kTensorStage);
  }();
  if (!done.ok()) error_ = done.error();
}

void TensorGroup::exchange(const at::Tensor& input, std::span<const int64_t> input_sizes, const at::Tensor& output,
                           std::span<const int64_t> output_sizes) {
  if (error_) return;
  const Result<> done = [&]() -> Result<> {
    return TRY(ranks_->neighbours(size_))->all_to_all(input, input_sizes, output, output_sizes, kTensorStage);
  }();
  if (!done.ok()) error_ = done.error();
}

Result<> TensorGroup::status() const {
  if (error_) return *error_;
  return {};
}

}  // namespace mortise
