// A linear map by an adapted matrix W' = W + scale B A (Hu et al. 2021) of which A and B alone are learnt: forward and
// the gradient of the input by the merged W', which generation reads too, so that both compute the same numbers; the
// gradients of A and B by rank-r products, without that of W'.
// Cost: 4 N in out flops in all, and 4 N r (in + out) for the adapter. Thread rule: as libtorch.
#pragma once

#include <ATen/core/Tensor.h>

#include <span>
#include <vector>

namespace mortise {

// Undefined tensors where a matrix is not adapted.
struct LoraMatrix {
  at::Tensor a_RI;     // leaf
  at::Tensor b_OR;     // leaf
  at::Tensor base_OI;  // W, frozen
  double scale = 0.0;

  [[nodiscard]] bool defined() const { return a_RI.defined(); }
};

// y = x merged^T + bias. `parts` lie under one another in merged_OI, as high as `leaves`, the slices of merged_OI.
at::Tensor lora_linear(const at::Tensor& x_NI, const at::Tensor& merged_OI, const at::Tensor& bias_O,
                       std::span<const at::Tensor> leaves, std::span<const LoraMatrix> parts);

// The judge of one part, from the base alone: x W^T + bias + scale (x A^T) B^T, in ATen operations with autograd.
at::Tensor lora_linear_plain(const at::Tensor& x_NI, const LoraMatrix& part, const at::Tensor& bias_O);

}  // namespace mortise
