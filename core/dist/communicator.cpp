// Sums of plain numbers: copies them into a tensor, reduces it, and copies the sums back.
#include "dist/communicator.h"

#include <ATen/ops/empty.h>

#include <algorithm>

namespace mortise {

namespace {

// A copy: after a failure, a thread of the network may still write into the tensor, when the caller's memory is gone.
template <class Number>
Result<> reduce_copy(Communicator& ranks, std::span<Number> values, at::ScalarType type, std::string_view stage) {
  const at::Tensor copy = at::empty({static_cast<int64_t>(values.size())}, at::TensorOptions().dtype(type));
  std::copy(values.begin(), values.end(), copy.data_ptr<Number>());
  TRY(ranks.all_reduce_sum(copy, stage));
  std::copy_n(copy.data_ptr<Number>(), values.size(), values.begin());
  return {};
}

}  // namespace

Result<> Communicator::all_reduce_sum(std::span<float> values, std::string_view stage) {
  return reduce_copy(*this, values, at::kFloat, stage);
}

Result<> Communicator::all_reduce_sum(std::span<double> values, std::string_view stage) {
  return reduce_copy(*this, values, at::kDouble, stage);
}

Result<> Communicator::all_reduce_sum(std::span<int64_t> values, std::string_view stage) {
  return reduce_copy(*this, values, at::kLong, stage);
}

}  // namespace mortise
