// A linear map by an adapted matrix W' = W + scale B A (Hu et al. 2021) of which only A and B are trained. Forward and
// the gradient of the input use the merged W', which generation reads too, so both compute the same numbers. The
// gradients of A and B use rank-r products, without the gradient of W'.
// Dropout adds scale (drop(x) - x) A^T B^T to the merged product, which is the product with W plus the adapter's of
// drop(x).
// DoRA (Liu et al. 2024): W' = m V / |V| row by row, with V = W + scale B A and a trained magnitude m. As in the paper
// and in PEFT, no gradient passes through |V|, and dropout also acts on the part (m / |V| - 1) W.
// Cost: 4 N in out flops in all, and 4 N r (in + out) for the adapter; with dropout half as much again for the adapter,
// and three masks. DoRA: 2 N in out more, and 4 N in out more with dropout. Thread rule: as libtorch.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <span>
#include <vector>

#include "model/layers/linear.h"
#include "model/layers/lora_dropout.h"
#include "model/weights/tensor_split.h"

namespace mortise {

// Undefined tensors where a matrix is not adapted. Of all experts of a mixture: see expert_lora.h for the shapes.
struct LoraMatrix {
  at::Tensor a_RI;     // leaf
  at::Tensor b_OR;     // leaf
  at::Tensor base_OI;  // W, frozen
  // Only DoRA has these two; else they are undefined.
  at::Tensor magnitude_O;  // leaf
  at::Tensor norm_O;       // |V| of each row of V, at the current A and B
  // Only starts that left the base have these (PiSSA, OLoRA): A and B at that time. base_OI is then what they left.
  at::Tensor start_a_RI, start_b_OR;
  double scale = 0.0;
  int64_t module = 0;  // its place among the adapter's matrices
  // If ranks share W: how. base_OI is then this rank's part, norm_O whole.
  TensorSplit split = {};
  int64_t first_input = 0;  // column of W with which part_on_rank() begins

  [[nodiscard]] bool defined() const { return a_RI.defined(); }
};

// What one of the ranks that share the matrix multiplies by: its rows of B, magnitude and norms, or its columns of A.
[[nodiscard]] LoraMatrix part_on_rank(const LoraMatrix& lora, int64_t rank);

// y = x merged^T + bias. `parts` are stacked in merged_OI, with the heights of `leaves`, the slices of merged_OI. A
// leaf without an adapter, or of `bias_leaves` (the slices of bias_O), that requires grad gets its own gradient.
// `dropout`: null for none; it must live until the call returns. `product_OI`: merged_OI, or its copy in bfloat16, by which
// x and the gradient of y are multiplied; the adapter's own products are in merged_OI's dtype. No product is made for a known
// result, which must be one without dropout.
at::Tensor lora_linear(const at::Tensor& x_NI, const at::Tensor& merged_OI, const at::Tensor& product_OI,
                       const at::Tensor& bias_O, std::span<const at::Tensor> leaves,
                       std::span<const at::Tensor> bias_leaves, std::span<const LoraMatrix> parts,
                       const LoraDropout* dropout = nullptr, const KnownResult& known_NO = {});

// The reference implementation of one part, from the base: x W^T + bias + scale (drop(x) A^T) B^T, for DoRA with its
// magnitudes, in ATen operations with autograd.
at::Tensor lora_linear_plain(const at::Tensor& x_NI, const LoraMatrix& part, const at::Tensor& bias_O,
                             const LoraDropout* dropout = nullptr);

}  // namespace mortise
