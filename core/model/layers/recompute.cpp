// See recompute.h.
#include "model/layers/recompute.h"

#include <ATen/core/grad_mode.h>
#include <ATen/core/ivalue.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/custom_function.h>

#include <algorithm>

namespace mortise {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

// The layer on its way through the graph: a context keeps IValues only.
struct LayerHolder : torch::CustomClassHolder {
  explicit LayerHolder(ResidualLayer given) : layer(std::move(given)) {}
  ResidualLayer layer;
};

class RecomputeFunction : public torch::autograd::Function<RecomputeFunction> {
 public:
  // Runs with GradMode off: nothing inside the layer is recorded.
  static variable_list forward(AutogradContext* ctx, const at::Tensor& hidden, const at::Tensor& normed,
                               const c10::intrusive_ptr<LayerHolder>& holder) {
    ctx->save_for_backward({hidden, normed});
    ctx->saved_data["layer"] = c10::IValue::make_capsule(holder);
    ctx->set_materialize_grads(false);
    const ResidualPair out = holder->layer(hidden, normed);
    return {out.first, out.second};
  }

  static variable_list backward(AutogradContext* ctx, const variable_list& grads) {
    const auto saved = ctx->get_saved_variables();
    const c10::intrusive_ptr<torch::CustomClassHolder> capsule = ctx->saved_data["layer"].toCapsule();
    const auto* holder = static_cast<const LayerHolder*>(capsule.get());
    const at::Tensor hidden = saved[0].detach().set_requires_grad(true);
    const at::Tensor normed = saved[1].detach().set_requires_grad(true);
    variable_list outputs, output_grads;
    {
      const at::AutoGradMode record(true);
      const ResidualPair out = holder->layer(hidden, normed);
      for (const auto& [output, grad] : {std::pair{out.first, grads[0]}, std::pair{out.second, grads[1]}}) {
        if (!grad.defined()) continue;
        outputs.push_back(output);
        output_grads.push_back(grad);
      }
    }
    // A backward inside a backward: the leaves that the layer reads get their gradients here.
    if (!outputs.empty()) torch::autograd::backward(outputs, output_grads);
    return {hidden.grad(), normed.grad(), at::Tensor()};
  }
};

// Counts for the kind of MLP that keeps more. A dense one keeps gate, up and the gated half. A mixture keeps them and its
// input and output for each of a token's experts, the router's numbers and the shared expert. The gated half and the
// experts' inputs are inputs of products.
int64_t mlp_bytes(const ModelConfig& config, const NumberSizes& sizes) {
  const MoeConfig& moe = config.moe;
  const int64_t gated = 2 * sizes.activation + sizes.kept_input();
  const int64_t dense = config.num_expert_layers() < config.num_layers ? gated * config.intermediate_size : 0;
  if (moe.num_experts == 0) return dense;
  const int64_t one = (sizes.activation + sizes.kept_input()) * config.hidden_size + gated * moe.expert_size;
  const int64_t chosen = moe.experts_per_token * (one + 4 * sizes.activation);
  const int64_t shared = moe.shared_size > 0 ? gated * moe.shared_size + sizes.activation * config.hidden_size : 0;
  return std::max(dense, chosen + 2 * moe.num_experts * sizes.activation + shared);
}

// What the operations of a device's layers keep in addition, by the formulas of operators.h. A norm keeps its input times
// the inverse of its size, the activation its result, and the rotation its cosines and sines. Attention keeps q, k, v and its
// result: in bfloat16 rounded copies, and in float32 k and v once for each query head. (The CPU's kernels keep the
// rotated qkv, which is not counted here.)
int64_t more_by_operators(const ModelConfig& config, const NumberSizes& sizes) {
  const int64_t norms = config.sandwich_norm ? 4 : 2, q = config.q_size(), kv = config.kv_size();
  const int64_t head_norms = config.qk_norm ? q + kv + config.num_heads + config.num_kv_heads : 0;
  const int64_t activated = config.num_expert_layers() < config.num_layers ? config.intermediate_size : 0;
  const int64_t of_gate = config.moe.is_gpt_oss ? 4 : 1;  // both halves within their limits, the sigmoid, and a product
  const int64_t by_experts = of_gate * config.moe.experts_per_token * config.moe.expert_size + config.moe.shared_size;
  const bool rounds = sizes.product_input < sizes.activation;
  const int64_t attention = rounds ? (2 * q + 2 * kv) * sizes.product_input : 3 * q * sizes.activation;
  return (norms * config.hidden_size + head_norms - config.qkv_size() + config.head_dim +
          std::max(activated, by_experts)) *
             sizes.activation +
         attention;
}

// The same of the kernels of core/cuda, by kernel_layers.h: norms, gates and the rotation keep nothing that the products and
// attention do not, and no number for each row. The result of attention is the input of a product.
int64_t more_by_kernels(const ModelConfig& config, const NumberSizes& sizes) {
  const int64_t norms = config.sandwich_norm ? 4 : 2, q = config.q_size(), kv = config.kv_size();
  const bool rounds = sizes.product_input < sizes.activation;
  const int64_t result = sizes.has_adapter ? q : 0;  // attention keeps its own
  const int64_t attention = rounds ? (q + 2 * kv + result) * sizes.product_input : 3 * q * sizes.activation;
  return attention - (config.qkv_size() + norms) * sizes.activation;
}

}  // namespace

ResidualPair recomputed(const ResidualLayer& layer, const at::Tensor& hidden_NH, const at::Tensor& normed_NH) {
  const variable_list out = RecomputeFunction::apply(hidden_NH, normed_NH, c10::make_intrusive<LayerHolder>(layer));
  return {out[0], out[1]};
}

LayerMemory layer_memory(const ModelConfig& config, const NumberSizes& sizes) {
  // The inputs of the four products (two normed states, the heads' outputs, the gated half), the two residual sums, the
  // rotated qkv, gate and up; with norms over heads the qkv before them, with norms behind the blocks their inputs; one
  // number a row for each norm, one a head for attention.
  const int64_t norms = config.sandwich_norm ? 4 : 2;
  const int64_t hidden_states = config.sandwich_norm ? 4 : 2;  // next to the two that enter products
  const int64_t qkv = config.qkv_size() * (config.qk_norm ? 2 : 1);
  const int64_t numbers = hidden_states * config.hidden_size + qkv + config.num_heads + norms;
  const int64_t inputs = 2 * config.hidden_size + config.q_size();
  const int64_t more = sizes.by_kernels     ? more_by_kernels(config, sizes)
                       : sizes.by_operators ? more_by_operators(config, sizes)
                                            : 0;
  return {numbers * sizes.activation + inputs * sizes.kept_input() + mlp_bytes(config, sizes) + more,
          2 * config.hidden_size * sizes.activation};
}

int64_t layers_to_recompute(const ModelConfig& config, const NumberSizes& sizes, int64_t num_tokens,
                            int64_t budget_bytes) {
  const LayerMemory memory = layer_memory(config, sizes);
  const int64_t all_recomputed = config.num_layers * num_tokens * memory.recomputed;
  const int64_t more_to_keep_one = num_tokens * (memory.kept - memory.recomputed);
  const int64_t left = budget_bytes - all_recomputed;
  if (left < 0 || more_to_keep_one <= 0) return left < 0 ? config.num_layers : 0;
  return config.num_layers - std::min(config.num_layers, left / more_to_keep_one);
}

}  // namespace mortise
