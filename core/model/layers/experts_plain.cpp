// The experts in ATen operations, one after the other. See experts.h.
#include <ATen/TensorOperators.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/index_select.h>
#include <ATen/ops/nonzero.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>

#include <functional>
#include <span>
#include <vector>

#include "model/layers/clamped_gate.h"
#include "model/layers/expert_lora.h"
#include "model/layers/experts.h"
#include "model/layers/gated.h"
#include "model/layers/linear.h"

namespace mortise {
namespace {

// What the matrix of one kind (gate and up together, or down) makes of the rows of an expert.
using ProductOfExpert = std::function<at::Tensor(const at::Tensor& x, size_t expert)>;

// The stacked form: an expert is a slice of its leaf, or the rounded matrix with the leaf's gradient. One unbind for all
// experts: backward of a select makes zeros of the whole tensor.
ProductOfExpert stacked_product(const at::Tensor& leaf_EIO, const at::Tensor& matrix_EIO, const at::Tensor& bias_EO) {
  return [leaves = leaf_EIO.unbind(0), matrices = matrix_EIO.unbind(0), biases = bias_EO.unbind(0)](
             const at::Tensor& x, size_t e) { return linear_plain(x, leaves[e].t(), matrices[e].t(), biases[e]); };
}

// The same number of leaves for each expert lie under one another in its matrix.
ProductOfExpert rows_product(const std::vector<at::Tensor>& leaves, const at::Tensor& matrix_EOI) {
  const size_t each = leaves.size() / static_cast<size_t>(matrix_EOI.size(0));
  return [leaves, matrices = matrix_EOI.unbind(0), each](const at::Tensor& x, size_t e) {
    const std::vector<at::Tensor> parts = matrices[e].chunk(static_cast<int64_t>(each), 0);
    std::vector<at::Tensor> out;
    for (size_t i = 0; i < each; ++i) out.push_back(linear_plain(x, leaves[e * each + i], parts[i], {}));
    return each == 1 ? out.front() : at::cat(out, 1);
  };
}

// By the merged matrices, with the gradients of the adapter alone (lora_linear.h).
ProductOfExpert adapted_product(const at::Tensor& merged_E, const at::Tensor& bias_EO, const LoraMatrix& lora,
                                bool is_stacked) {
  const int64_t num_experts = merged_E.size(0);
  const at::Tensor merged_EOI = is_stacked ? merged_E.transpose(1, 2) : merged_E;
  return [merged = merged_EOI.unbind(0), a = factors_a(lora.a_RI, num_experts).unbind(0),
          b = factors_b(lora.b_OR, num_experts).unbind(0),
          biases = bias_EO.defined() ? bias_EO.unbind(0) : std::vector<at::Tensor>(),
          scale = lora.scale](const at::Tensor& x, size_t e) {
    if (x.size(0) == 0) return at::zeros({0, merged[e].size(0)}, x.options());
    LoraMatrix part;
    part.a_RI = a[e];
    part.b_OR = b[e];
    part.scale = scale;
    const at::Tensor bias = biases.empty() ? at::Tensor() : biases[e];
    return lora_linear(x, merged[e], merged[e], bias, std::span(&merged[e], 1),
                       std::span(&bias, bias.defined() ? 1 : 0), std::span(&part, 1));
  };
}

ProductOfExpert plain_product(const std::vector<at::Tensor>& leaves, const at::Tensor& matrix_E,
                              const at::Tensor& bias_EO, bool is_stacked) {
  return is_stacked ? stacked_product(leaves.front(), matrix_E, bias_EO) : rows_product(leaves, matrix_E);
}

at::Tensor sum_of_experts(const at::Tensor& x_NH, const Routing& routing, const ModelConfig& config,
                          const ProductOfExpert& gate_up, const ProductOfExpert& down) {
  const MoeConfig& moe = config.moe;
  at::Tensor out = at::zeros_like(x_NH);
  for (size_t e = 0; e < static_cast<size_t>(moe.num_experts); ++e) {
    const at::Tensor taken = at::nonzero(routing.experts_NK == static_cast<int64_t>(e));
    const at::Tensor tokens = taken.select(1, 0);
    const at::Tensor both = gate_up(at::index_select(x_NH, 0, tokens), e);
    const at::Tensor units = moe.is_gpt_oss ? clamped_gate_plain(both, moe.swiglu_alpha, moe.swiglu_limit)
                                            : gated_plain(both, config.activation);
    const at::Tensor flat = tokens * routing.experts_NK.size(1) + taken.select(1, 1);
    const at::Tensor weight = at::index_select(routing.weights_NK.reshape({-1}), 0, flat);
    out = out.index_add(0, tokens, down(units, e) * weight.unsqueeze(1));
  }
  return out;
}

}  // namespace

at::Tensor mixture_plain(const at::Tensor& x_NH, const Routing& routing, const LayerMatrices& matrices,
                         const ExpertLeaves& frozen, const ModelConfig& config) {
  const bool is_stacked = config.moe.is_gpt_oss;
  const ExpertLeaves leaves = adapted_experts_plain(frozen, is_stacked);
  return sum_of_experts(x_NH, routing, config,
                        plain_product(leaves.gate_up, matrices.expert_gate_up_E2IH, leaves.gate_up_bias, is_stacked),
                        plain_product(leaves.down, matrices.expert_down_EHI, leaves.down_bias, is_stacked));
}

at::Tensor mixture_operators(const at::Tensor& x_NH, const Routing& routing, const LayerMatrices& matrices,
                             const ExpertLeaves& leaves, const ModelConfig& config) {
  const bool is_stacked = config.moe.is_gpt_oss;
  const auto product_of = [&](const std::vector<at::Tensor>& own, const at::Tensor& matrix_E, const at::Tensor& bias_EO,
                              const LoraMatrix& lora) {
    return lora.defined() ? adapted_product(matrix_E, bias_EO, lora, is_stacked)
                          : plain_product(own, matrix_E, bias_EO, is_stacked);
  };
  return sum_of_experts(
      x_NH, routing, config,
      product_of(leaves.gate_up, matrices.expert_gate_up_E2IH, leaves.gate_up_bias, leaves.gate_up_lora),
      product_of(leaves.down, matrices.expert_down_EHI, leaves.down_bias, leaves.down_lora));
}

}  // namespace mortise
