// See kernel_layers.h.
#include "model/layers/kernel_layers.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <c10/core/DeviceGuard.h>
#include <torch/csrc/autograd/custom_function.h>

#include <algorithm>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "model/device/kernel_table.h"
#include "model/layers/experts.h"
#include "model/layers/kernel_experts.h"
#include "model/layers/kernel_gates.h"
#include "model/layers/linear.h"
#include "model/layers/rms_norm.h"
#include "model/layers/rotated_heads.h"
#include "model/tensor/kernel.h"

namespace mortise {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

const DeviceKernels& kernels_of(const at::Tensor& x) { return *device_kernels(x.device()); }

// Null if it is not defined.
const float* numbers_of(const at::Tensor& x) { return x.defined() ? x.const_data_ptr<float>() : nullptr; }

// ---- norms ----

struct Normed {
  at::Tensor sum, out;  // sum: x itself without a residual
};

Normed norm_forward(const at::Tensor& x, const at::Tensor& residual, const at::Tensor& weight, double eps,
                    at::ScalarType result) {
  const c10::OptionalDeviceGuard own_device(x.device());
  const Normed out{residual.defined() ? at::empty_like(x) : x, at::empty(x.sizes(), x.options().dtype(result))};
  float* const sum = residual.defined() ? out.sum.mutable_data_ptr<float>() : nullptr;
  check_started(kernels_of(x).rms_norm(x.const_data_ptr<float>(), numbers_of(residual), weight.const_data_ptr<float>(),
                                       static_cast<float>(eps), x.size(0), x.size(1), sum, kernel_out(out.out),
                                       stream_of(x.device())),
                "rms_norm");
  return out;
}

// Without a residual: its place is undefined, and the result is {norm}; else {sum, norm}.
class KernelNorm : public torch::autograd::Function<KernelNorm> {
 public:
  static variable_list forward(AutogradContext* ctx, const at::Tensor& x, const std::optional<at::Tensor>& residual,
                               const at::Tensor& weight, double eps, int64_t result) {
    const Normed it =
        norm_forward(x, residual.value_or(at::Tensor()), weight, eps, static_cast<at::ScalarType>(result));
    ctx->save_for_backward({it.sum, weight});
    ctx->set_materialize_grads(false);
    ctx->saved_data["eps"] = eps;
    ctx->saved_data["has_residual"] = residual.has_value();
    if (residual) return {it.sum, it.out};
    return {it.out};
  }

  static variable_list backward(AutogradContext* ctx, const variable_list& grads) {
    const auto saved = ctx->get_saved_variables();
    const at::Tensor &x = saved[0], &weight = saved[1];
    const bool has_residual = ctx->saved_data["has_residual"].toBool();
    const at::Tensor extra = has_residual && grads[0].defined() ? grads[0].contiguous() : at::Tensor();
    const at::Tensor& given = grads[has_residual ? 1 : 0];
    if (!given.defined()) return {extra, extra, at::Tensor(), at::Tensor(), at::Tensor()};  // nobody read the norm
    const c10::OptionalDeviceGuard own_device(x.device());
    const at::Tensor d_out = given.contiguous(), dx = at::empty_like(x), d_weight = at::empty_like(weight);
    const at::Tensor parts = at::empty({ceil_div(x.size(0), MORTISE_CUDA_NORM_ROWS), x.size(1)}, x.options());
    check_started(kernels_of(x).rms_norm_backward(x.const_data_ptr<float>(), weight.const_data_ptr<float>(),
                                                  static_cast<float>(ctx->saved_data["eps"].toDouble()), x.size(0),
                                                  x.size(1), kernel_in(d_out), numbers_of(extra),
                                                  dx.mutable_data_ptr<float>(), parts.mutable_data_ptr<float>(),
                                                  d_weight.mutable_data_ptr<float>(), stream_of(x.device())),
                  "rms_norm_backward");
    return {dx, has_residual ? dx : at::Tensor(), d_weight, at::Tensor(), at::Tensor()};
  }
};

bool takes_norm(const at::Tensor& x) {
  return x.size(0) > 0 && x.size(1) > 0 && x.size(1) <= MORTISE_CUDA_MOST_NORM_WIDTH;
}

template <at::ScalarType kResult>
at::Tensor norm(const at::Tensor& x_NH, const at::Tensor& weight_H, double eps) {
  if (!takes_norm(x_NH)) return rms_norm_plain(x_NH, weight_H, eps);
  const at::Tensor x = x_NH.contiguous(), weight = weight_H.contiguous();
  if (!at::GradMode::is_enabled()) return norm_forward(x, {}, weight, eps, kResult).out;
  return KernelNorm::apply(x, std::optional<at::Tensor>(), weight, eps, static_cast<int64_t>(kResult))[0];
}

template <at::ScalarType kResult>
std::pair<at::Tensor, at::Tensor> add_norm(const at::Tensor& x_NH, const at::Tensor& residual_NH,
                                           const at::Tensor& weight_H, double eps) {
  if (!takes_norm(x_NH)) return operator_layers().add_rms_norm(x_NH, residual_NH, weight_H, eps);
  const at::Tensor x = x_NH.contiguous(), residual = residual_NH.contiguous(), weight = weight_H.contiguous();
  if (!at::GradMode::is_enabled()) {
    const Normed out = norm_forward(x, residual, weight, eps, kResult);
    return {out.sum, out.out};
  }
  const variable_list out =
      KernelNorm::apply(x, std::optional<at::Tensor>(residual), weight, eps, static_cast<int64_t>(kResult));
  return {out[0], out[1]};
}

// For sampling. In training rotated_attention() has these norms, except for heads of an odd size.
at::Tensor head_norm(const at::Tensor& qkv_NQ, const at::Tensor& q_weight_D, const at::Tensor& k_weight_D,
                     int64_t num_heads, int64_t num_kv_heads, double eps) {
  if (at::GradMode::is_enabled() || q_weight_D.size(0) % 2 != 0)
    return qk_norm_plain(qkv_NQ, q_weight_D, k_weight_D, num_heads, num_kv_heads, eps);
  const c10::OptionalDeviceGuard own_device(qkv_NQ.device());
  const at::Tensor qkv = qkv_NQ.contiguous(), q = q_weight_D.contiguous(), k = k_weight_D.contiguous();
  const MortiseCudaHeads heads{static_cast<int32_t>(num_heads), static_cast<int32_t>(num_kv_heads),
                               static_cast<int32_t>(q.size(0))};
  check_started(kernels_of(qkv).head_norm(qkv.mutable_data_ptr<float>(), qkv.size(0), heads, q.const_data_ptr<float>(),
                                          k.const_data_ptr<float>(), static_cast<float>(eps), stream_of(qkv.device())),
                "head_norm");
  return qkv;
}

template <at::ScalarType kResult>
at::Tensor gate(const at::Tensor& gate_up_N2I, Activation activation) {
  return kernel_gate(gate_up_N2I, activation, kResult);
}

// ---- the MLP of a dense layer ----

// down(act(gate) * up) as one function: between its products the gradients of gate and up are then never float32 in a model
// whose matrices are bfloat16.
class KernelMlp : public torch::autograd::Function<KernelMlp> {
 public:
  // `leaves`: those of gate and up, and then down; for their gradients.
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& x, const at::Tensor& gate_up_2IH,
                            const at::Tensor& down_HI, at::TensorList leaves, int64_t activation) {
    const at::ScalarType input = down_HI.scalar_type();
    const at::Tensor in = x.to(input);
    const at::Tensor gate_up = linear_product(in, gate_up_2IH, std::nullopt);
    const at::Tensor units = gate_forward(gate_up, static_cast<Activation>(activation), input);
    std::vector<int64_t> rows;
    for (const at::Tensor& leaf : leaves) rows.push_back(leaf.size(0));
    const std::vector<int64_t> trained = trained_leaves(leaves);
    const bool keeps_input = std::find(trained.begin(), trained.end() - 1, 1) != trained.end() - 1;
    ctx->save_for_backward(
        {keeps_input ? in : at::Tensor(), gate_up_2IH, down_HI, gate_up, trained.back() == 1 ? units : at::Tensor()});
    ctx->saved_data["activation"] = activation;
    ctx->saved_data["rows"] = rows;
    ctx->saved_data["trained"] = trained;
    ctx->saved_data["dtype"] = static_cast<int64_t>(x.scalar_type());
    return linear_product(units, down_HI, std::nullopt);
  }

  static variable_list backward(AutogradContext* ctx, const variable_list& grads) {
    const auto saved = ctx->get_saved_variables();
    const at::Tensor &in = saved[0], &gate_up_2IH = saved[1], &down_HI = saved[2], &units = saved[4];
    const std::vector<int64_t> rows = ctx->saved_data["rows"].toIntVector(),
                               trained = ctx->saved_data["trained"].toIntVector();
    const auto activation = static_cast<Activation>(ctx->saved_data["activation"].toInt());
    const at::Tensor dy = grads[0].to(down_HI.scalar_type());
    const at::Tensor d_gate_up =
        gate_backward(saved[3], activation, input_gradient(dy, down_HI, down_HI.scalar_type()));
    variable_list out(3);
    if (ctx->needs_input_grad(0))
      out[0] = input_gradient(d_gate_up, gate_up_2IH, static_cast<at::ScalarType>(ctx->saved_data["dtype"].toInt()));
    const at::Tensor d_weight = in.defined() ? weight_gradient(d_gate_up, in) : at::Tensor();
    int64_t row = 0;
    for (size_t i = 0; i + 1 < rows.size(); ++i) {
      out.push_back(leaf_gradient(d_weight, row, rows[i], std::span(trained).first(rows.size() - 1), i));
      row += rows[i];
    }
    out.push_back(units.defined() ? weight_gradient(dy, units) : at::Tensor());
    out.resize(out.size() + 1);  // activation
    return out;
  }
};

at::Tensor dense_mlp(const at::Tensor& x_NH, const at::Tensor& gate_up_2IH, const at::Tensor& down_HI,
                     const std::vector<at::Tensor>& gate_up_leaves, const at::Tensor& down_leaf,
                     Activation activation) {
  std::vector<at::Tensor> leaves = gate_up_leaves;
  leaves.push_back(down_leaf);
  return KernelMlp::apply(x_NH, gate_up_2IH, down_HI, at::TensorList(leaves), static_cast<int64_t>(activation));
}

bool takes_every_mlp(const at::Tensor& /*x*/, const at::Tensor& /*gate_up*/, const at::Tensor& /*down*/) {
  return true;
}

// ---- experts ----

// One after the other, as dense layers. Adapters, and gpt-oss with its biases, have the function of dense layers for each
// product.
at::Tensor experts(const at::Tensor& x_NH, const Routing& routing, const LayerMatrices& matrices,
                   const ExpertLeaves& leaves, const ModelConfig& config) {
  const bool is_adapted = leaves.gate_up_lora.defined() || leaves.down_lora.defined();
  if (config.moe.is_gpt_oss || is_adapted) {
    const at::ScalarType result = is_adapted ? x_NH.scalar_type() : matrices.expert_down_EHI.scalar_type();
    return mixture_by_gate(x_NH, routing, matrices, leaves, config,
                           [&](const at::Tensor& both) { return kernel_expert_gate(both, config, result); });
  }
  const std::vector<at::Tensor> gate_up = matrices.expert_gate_up_E2IH.unbind(0),
                                down = matrices.expert_down_EHI.unbind(0);
  const Activation activation = config.activation;
  return sum_of_experts(x_NH, routing, config.moe.num_experts, [&](const at::Tensor& x, size_t e) {
    if (at::GradMode::is_enabled())
      return dense_mlp(x, gate_up[e], down[e], leaves_of_expert(leaves.gate_up, e, gate_up.size()), leaves.down[e],
                       activation);
    const at::Tensor both = linear_product(x, gate_up[e], std::nullopt);
    return linear_product(gate_forward(both, activation, down[e].scalar_type()), down[e], std::nullopt);
  });
}

// Training's passes without gradients have the bits of those with them, so kernels take sampling alone.
at::Tensor experts_to_sample(const at::Tensor& x_NH, const Routing& routing, const LayerMatrices& matrices,
                             const ExpertLeaves& leaves, const ModelConfig& config) {
  const bool is_rounded = matrices.expert_down_EHI.scalar_type() == at::kBFloat16;
  const bool is_taken = kernels_take_experts(config, x_NH.size(0), is_rounded) && kernels_read_experts(matrices);
  return (is_taken ? kernel_mixture : experts)(x_NH, routing, matrices, leaves, config);
}

template <at::ScalarType kResult>
LayerCode layers_with_results() {
  LayerCode out = operator_layers();
  out.rms_norm = norm<kResult>;
  out.add_rms_norm = add_norm<kResult>;
  out.qk_norm = head_norm;
  out.gated = gate<kResult>;
  out.mixture = experts;
  out.mixture_to_sample = experts_to_sample;
  out.route_to_sample = kernel_route;
  out.gated_mlp = dense_mlp;
  out.fits_gated_mlp = takes_every_mlp;
  out.normed_attention = rotated_attention;
  return out;
}

}  // namespace

const LayerCode* kernel_layers(const at::TensorOptions& options) {
  static const LayerCode before_rounded = layers_with_results<at::kBFloat16>();
  static const LayerCode code = [] {
    LayerCode out = layers_with_results<at::kFloat>();
    out.before_rounded = &before_rounded;
    return out;
  }();
  const bool is_float = c10::typeMetaToScalarType(options.dtype()) == at::kFloat;
  return is_float && device_kernels(options.device()) != nullptr ? &code : nullptr;
}

}  // namespace mortise
