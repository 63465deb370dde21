// The experts in ATen operations, one after the other. See experts.h.
#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/argsort.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/searchsorted.h>
#include <ATen/ops/sort.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>

#include <functional>
#include <span>
#include <utility>
#include <vector>

#include "model/layers/clamped_gate.h"
#include "model/layers/expert_lora.h"
#include "model/layers/experts.h"
#include "model/layers/gated.h"
#include "model/layers/linear.h"
#include "model/layers/select_rows.h"

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

// The same by the function that dense layers have: one product of all parts, in bfloat16 if the matrices are.
ProductOfExpert fused_product(const std::vector<at::Tensor>& leaves, const at::Tensor& matrix_E,
                              const at::Tensor& bias_EO, bool is_stacked) {
  if (is_stacked) {
    return [own = leaves.front().unbind(0), matrices = matrix_E.unbind(0), biases = bias_EO.unbind(0)](
               const at::Tensor& x, size_t e) {
      return fused_linear(x, matrices[e].t(), biases[e], {own[e].t()}, {biases[e]});
    };
  }
  return [leaves, matrices = matrix_E.unbind(0)](const at::Tensor& x, size_t e) {
    return fused_linear(x, matrices[e], {}, leaves_of_expert(leaves, e, matrices.size()), {});
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

// The choices of all tokens in the order of their experts, and those of one expert in the order of the tokens.
struct ChoicesByExpert {
  at::Tensor order_C, back_C;   // the place of each choice among those of the tokens, and the inverse
  std::vector<int64_t> counts;  // by expert
};

// The host waits for the device once: it has to know how many tokens each expert has.
ChoicesByExpert by_expert(const at::Tensor& experts_NK, int64_t num_experts) {
  const at::Tensor experts_C = experts_NK.reshape({-1});
  const auto [sorted_C, order_C] = at::sort(experts_C, /*stable=*/true, /*dim=*/0, /*descending=*/false);
  ChoicesByExpert out{order_C, at::argsort(order_C), {}};
  const at::Tensor begins = at::searchsorted(sorted_C, at::arange(num_experts + 1, experts_C.options())).to(at::kCPU);
  const auto* const begin = begins.const_data_ptr<int64_t>();
  for (int64_t e = 0; e < num_experts; ++e) out.counts.push_back(begin[e + 1] - begin[e]);
  return out;
}

// down(gate(gate_up)) of an expert.
MlpOfExpert mlp_of(GateOfExpert gate, ProductOfExpert gate_up, ProductOfExpert down) {
  return [gate = std::move(gate), gate_up = std::move(gate_up), down = std::move(down)](const at::Tensor& x, size_t e) {
    return down(gate(gate_up(x, e)), e);
  };
}

GateOfExpert plain_gate(const ModelConfig& config) {
  return [&config](const at::Tensor& both) {
    const MoeConfig& moe = config.moe;
    return moe.is_gpt_oss ? clamped_gate_plain(both, moe.swiglu_alpha, moe.swiglu_limit)
                          : gated_plain(both, config.activation);
  };
}

// What each expert makes of its tokens, in the order of the choices.
std::vector<at::Tensor> outputs_of_experts(const at::Tensor& x_NH, const ChoicesByExpert& choices,
                                           const MlpOfExpert& mlp) {
  const int64_t num_tokens = x_NH.size(0), width = x_NH.size(1), count = choices.order_C.size(0);
  const int64_t each = num_tokens == 0 ? 0 : count / num_tokens;
  const at::Tensor x_CH = x_NH.unsqueeze(1).expand({num_tokens, each, width}).reshape({count, width});
  const std::vector<at::Tensor> inputs =
      permute_rows(x_CH, choices.order_C, choices.back_C).split_with_sizes(choices.counts, 0);
  std::vector<at::Tensor> outputs;
  for (size_t e = 0; e < inputs.size(); ++e) {
    // Backward gives also the matrices of other experts their gradients, which are 0.
    if (choices.counts[e] == 0 && !at::GradMode::is_enabled()) continue;
    outputs.push_back(mlp(inputs[e], e));
  }
  return outputs;
}

}  // namespace

std::vector<at::Tensor> leaves_of_expert(const std::vector<at::Tensor>& leaves, size_t expert, size_t num_experts) {
  const size_t each = leaves.size() / num_experts;
  const auto first = leaves.begin() + static_cast<std::ptrdiff_t>(expert * each);
  return {first, first + static_cast<std::ptrdiff_t>(each)};
}

// The experts of a token are added in the order of the routing, which is ascending, as by `mixture`.
at::Tensor sum_of_experts(const at::Tensor& x_NH, const Routing& routing, int64_t num_experts, const MlpOfExpert& mlp) {
  const ChoicesByExpert choices = by_expert(routing.experts_NK, num_experts);
  std::vector<at::Tensor> outputs = outputs_of_experts(x_NH, choices, mlp);
  if (outputs.empty()) return at::zeros_like(x_NH);
  at::Tensor all_CH = at::cat(outputs, 0);
  outputs.clear();
  at::Tensor terms_NKH = permute_rows(all_CH, choices.back_C, choices.order_C)
                             .reshape({x_NH.size(0), routing.experts_NK.size(1), x_NH.size(1)});
  all_CH.reset();
  const at::Tensor weights_NK1 = routing.weights_NK.unsqueeze(2);
  if (at::GradMode::is_enabled()) return (terms_NKH * weights_NK1).sum(1);
  return terms_NKH.mul_(weights_NK1).sum(1);
}

at::Tensor mixture_plain(const at::Tensor& x_NH, const Routing& routing, const LayerMatrices& matrices,
                         const ExpertLeaves& frozen, const ModelConfig& config) {
  const bool is_stacked = config.moe.is_gpt_oss;
  const ExpertLeaves leaves = adapted_experts_plain(frozen, is_stacked);
  return sum_of_experts(
      x_NH, routing, config.moe.num_experts,
      mlp_of(plain_gate(config),
             plain_product(leaves.gate_up, matrices.expert_gate_up_E2IH, leaves.gate_up_bias, is_stacked),
             plain_product(leaves.down, matrices.expert_down_EHI, leaves.down_bias, is_stacked)));
}

at::Tensor mixture_by_gate(const at::Tensor& x_NH, const Routing& routing, const LayerMatrices& matrices,
                           const ExpertLeaves& leaves, const ModelConfig& config, const GateOfExpert& gate) {
  const bool is_stacked = config.moe.is_gpt_oss;
  const auto product_of = [&](const std::vector<at::Tensor>& own, const at::Tensor& matrix_E, const at::Tensor& bias_EO,
                              const LoraMatrix& lora) {
    return lora.defined() ? adapted_product(matrix_E, bias_EO, lora, is_stacked)
                          : fused_product(own, matrix_E, bias_EO, is_stacked);
  };
  return sum_of_experts(
      x_NH, routing, config.moe.num_experts,
      mlp_of(gate, product_of(leaves.gate_up, matrices.expert_gate_up_E2IH, leaves.gate_up_bias, leaves.gate_up_lora),
             product_of(leaves.down, matrices.expert_down_EHI, leaves.down_bias, leaves.down_lora)));
}

at::Tensor mixture_operators(const at::Tensor& x_NH, const Routing& routing, const LayerMatrices& matrices,
                             const ExpertLeaves& leaves, const ModelConfig& config) {
  return mixture_by_gate(x_NH, routing, matrices, leaves, config, plain_gate(config));
}

}  // namespace mortise
