// Some rows of a matrix, with their gradient. libtorch adds the gradients of single rows one after the other on one
// thread; here threads share the rows of the matrix. A row that is selected several times adds up its gradients in the
// order of the selection, so the sum does not depend on threads.
// Cost: one pass over the selected rows forward, and over both backward. Thread rule: as compute_ranges().
#pragma once

#include <ATen/core/Tensor.h>

namespace mortise {

// x_NH rows at place_R (int64, each in [0, N)). libtorch's own index_select does it on devices and for other dtypes.
at::Tensor select_rows(const at::Tensor& x_NH, const at::Tensor& place_R);
// All rows in the order of place_N, whose inverse is back_N: neither direction adds rows up. By libtorch's operators.
at::Tensor permute_rows(const at::Tensor& x_NH, const at::Tensor& place_N, const at::Tensor& back_N);

}  // namespace mortise
