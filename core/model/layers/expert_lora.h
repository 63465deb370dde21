// Adapters of all experts of a layer in PEFT's form (expert_stacks.h): W'_e = W_e + scale B_e A_e, of which only A and B
// are trained. As in lora_linear.h, forward and the gradient of the input use the merged W', and the gradients of A and B
// are grouped products of rank r.
// Cost: 4 M r (in + out) flops more than without the gradient of W', for M rows. Thread rule: as libtorch.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "model/layers/decoder.h"
#include "model/layers/lora_linear.h"

namespace mortise {

// A as [E, r, in] (a view) and B as [E, out, r].
at::Tensor factors_a(const at::Tensor& a_RI, int64_t num_experts);
at::Tensor factors_b(const at::Tensor& b_OR, int64_t num_experts);

// out = base + scale B A for all experts. is_stacked: [E, in, out] as in gpt-oss, else [E, out, in]; so is `out`.
void merge_experts(const at::Tensor& base, const LoraMatrix& lora, bool is_stacked, at::Tensor out);

// y[rows of e] = x[rows of e] W'_e^T. `merged`: W', or its copy in bfloat16.
at::Tensor grouped_lora(const at::Tensor& x_MI, const at::Tensor& merged, const LoraMatrix& lora,
                        const std::vector<int64_t>& offsets, bool is_stacked);

// For the reference implementation: the leaves of adapted experts as functions of A and B.
ExpertLeaves adapted_experts_plain(const ExpertLeaves& leaves, bool is_stacked);

}  // namespace mortise
