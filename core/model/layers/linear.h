// Linear maps y = x W^T + b with one fused weight matrix, whose trainable leaves are row slices (q, k, v; gate, up).
// One GEMM forward, one for each of the two gradients, and every leaf gets its slice without a copy.
//
// If the weight is bfloat16, x and the gradient of y are rounded to it before the three products, whose sums and results
// are float32. Bias and leaves are float32. Backward keeps x in bfloat16.
// Cost: 2 N in out flops forward, twice that backward. Thread rule: as libtorch.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

namespace mortise {

// x W^T + b by one call; for the inside of an autograd function.
at::Tensor linear_product(const at::Tensor& x_NI, const at::Tensor& weight_OI, const std::optional<at::Tensor>& bias_O);
// The gradient of x. In float64 if the factors are, else in float32, or in bfloat16 for bfloat16 matrices if x is.
at::Tensor input_gradient(const at::Tensor& dy_NO, const at::Tensor& weight_OI, at::ScalarType of_x = at::kFloat);
// The gradient of the weight.
at::Tensor weight_gradient(const at::Tensor& dy_NO, const at::Tensor& x_NI);
// Which leaves require a gradient, as 0 and 1, for the inside of an autograd function.
std::vector<int64_t> trained_leaves(at::TensorList leaves);
// The rows of a leaf in the gradient of its fused matrix. Nothing for a frozen leaf. A copy if others are frozen: a kept
// slice would keep their rows too.
at::Tensor leaf_gradient(const at::Tensor& fused, int64_t first_row, int64_t num_rows, std::span<const int64_t> trained,
                         size_t leaf);
// Nothing for a tensor that is not defined.
std::optional<at::Tensor> optional_bias(const at::Tensor& bias_O);

// A result that somebody has computed before. Outside autograd: a function may give it as its own.
struct KnownResult {
  at::Tensor value;
};
// Rows that nobody reads, as the result of a function of which only the gradient is wanted. They take no memory.
at::Tensor unread_rows(int64_t rows, const at::Tensor& like_NH);

// `weight_leaves` are consecutive row slices of weight_OI, or of the matrix that it was rounded from, that cover it.
// `bias_leaves` are the same of bias_O (empty where bias_O is undefined). Leaves that don't require grad get no gradient;
// if none does, none is computed. No product is made for a known result.
at::Tensor fused_linear(const at::Tensor& x_NI, const at::Tensor& weight_OI, const at::Tensor& bias_O,
                        const std::vector<at::Tensor>& weight_leaves, const std::vector<at::Tensor>& bias_leaves,
                        const KnownResult& known_NO = {});

// The reference of one leaf, in ATen operations. `weight_OI` is the leaf, or its rounded copy.
at::Tensor linear_plain(const at::Tensor& x_NI, const at::Tensor& leaf_OI, const at::Tensor& weight_OI,
                        const at::Tensor& bias_O);

}  // namespace mortise
