// Linear maps y = x W^T + b with one fused weight matrix, whose trainable leaves are row slices (q, k, v; gate, up).
// One GEMM forward, one for each of the two gradients, and every leaf gets its slice without a copy.
// Cost: 2 N in out flops forward, twice that backward. Thread rule: as libtorch.
#pragma once

#include <ATen/core/Tensor.h>

#include <optional>
#include <vector>

namespace mortise {

// x W^T + b by one call; for the inside of an autograd function.
at::Tensor linear_product(const at::Tensor& x_NI, const at::Tensor& weight_OI, const std::optional<at::Tensor>& bias_O);
// Nothing for a tensor that is not defined.
std::optional<at::Tensor> optional_bias(const at::Tensor& bias_O);

// `weight_leaves` are consecutive row slices of weight_OI that cover it, `bias_leaves` of bias_O (empty where bias_O is
// undefined). Leaves that don't require grad cost nothing.
at::Tensor fused_linear(const at::Tensor& x_NI, const at::Tensor& weight_OI, const at::Tensor& bias_O,
                        const std::vector<at::Tensor>& weight_leaves, const std::vector<at::Tensor>& bias_leaves);

}  // namespace mortise
