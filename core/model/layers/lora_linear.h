// A linear map by an adapted matrix W' = W + scale B A (Hu et al. 2021) of which only A and B are trained. Forward and
// the gradient of the input use the merged W', which generation reads too, so both compute the same numbers. The
// gradients of A and B use rank-r products, without the gradient of W'.
// Dropout adds scale (drop(x) - x) A^T B^T to the merged product, which is the product with W plus the adapter's of
// drop(x).
// Cost: 4 N in out flops in all, and 4 N r (in + out) for the adapter; with dropout half as much again for the adapter,
// and three masks. Thread rule: as libtorch.
#pragma once

#include <ATen/core/Tensor.h>

#include <span>
#include <vector>

#include "model/layers/lora_dropout.h"

namespace mortise {

// Undefined tensors where a matrix is not adapted.
struct LoraMatrix {
  at::Tensor a_RI;     // leaf
  at::Tensor b_OR;     // leaf
  at::Tensor base_OI;  // W, frozen
  double scale = 0.0;
  int64_t module = 0;  // its place among the adapter's matrices

  [[nodiscard]] bool defined() const { return a_RI.defined(); }
};

// y = x merged^T + bias. `parts` are stacked in merged_OI, with the heights of `leaves`, the slices of merged_OI.
// `dropout`: null for none; it must live until the call returns.
at::Tensor lora_linear(const at::Tensor& x_NI, const at::Tensor& merged_OI, const at::Tensor& bias_O,
                       std::span<const at::Tensor> leaves, std::span<const LoraMatrix> parts,
                       const LoraDropout* dropout = nullptr);

// The reference implementation of one part, from the base: x W^T + bias + scale (drop(x) A^T) B^T, in ATen operations
// with autograd.
at::Tensor lora_linear_plain(const at::Tensor& x_NI, const LoraMatrix& part, const at::Tensor& bias_O,
                             const LoraDropout* dropout = nullptr);

}  // namespace mortise
