// The whole MLP of a dense layer, down(act(gate(x)) * up(x)), as one operation on blocks of rows. A task takes a block
// through all steps while its numbers are in the core's cache, forward and backward. Between separate operations they
// would go through memory, and every operation would have threads to wake and to wait for.
//
// Every number of gated_mlp() has the same bits as with fused_linear() and gated(), because the products' bits depend
// neither on other rows nor on threads, and backward cuts sums over rows as they do (f32_gemm.h).
// Cost: as the separate operations. Backward keeps the same tensors, x, gate and up, and their gated product. It holds a
// part of the weights' gradients for each block of at most 256 rows: with many rows and 128 inputs, three quarters of what
// the gradients of gate and up would take, and less with fewer inputs.
// Thread rule: as compute_tasks().
#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

#include "model/layers/linear.h"
#include "model/weights/model_config.h"

namespace mortise {

// Whether gated_mlp() takes these: float32 matrices of so few inputs that each product of a block is Mortise's own, on a
// CPU that has its kernels. A wider layer has products that are faster over all rows at once.
[[nodiscard]] bool fits_gated_mlp(const at::Tensor& x_NH, const at::Tensor& gate_up_2IH, const at::Tensor& down_HI);

// `gate_up_leaves` are consecutive row slices of gate_up_2IH that cover it. Precondition: fits_gated_mlp().
at::Tensor gated_mlp(const at::Tensor& x_NH, const at::Tensor& gate_up_2IH, const at::Tensor& down_HI,
                     const std::vector<at::Tensor>& gate_up_leaves, const at::Tensor& down_leaf, Activation activation);
// The same for its gradient alone, if gate and up of all rows are known. Gives unread_rows().
at::Tensor known_gated_mlp(const at::Tensor& x_NH, const at::Tensor& gate_up_2IH, const at::Tensor& down_HI,
                           const std::vector<at::Tensor>& gate_up_leaves, const at::Tensor& down_leaf,
                           Activation activation, const KnownResult& gate_up_N2I);

}  // namespace mortise
