// See kernel_gates.h.
#include "model/layers/kernel_gates.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <c10/core/DeviceGuard.h>
#include <torch/csrc/autograd/custom_function.h>

namespace mortise {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

MortiseCudaActivation code_of(Activation activation) {
  return activation == Activation::kSilu ? MORTISE_CUDA_SILU : MORTISE_CUDA_GELU_TANH;
}

class KernelGate : public torch::autograd::Function<KernelGate> {
 public:
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& gate_up, int64_t activation, int64_t result) {
    ctx->save_for_backward({gate_up});
    ctx->saved_data["activation"] = activation;
    return gate_forward(gate_up, static_cast<Activation>(activation), static_cast<at::ScalarType>(result));
  }
  static variable_list backward(AutogradContext* ctx, const variable_list& grads) {
    const at::Tensor gate_up = ctx->get_saved_variables()[0];
    const auto activation = static_cast<Activation>(ctx->saved_data["activation"].toInt());
    return {gate_backward(gate_up, activation, grads[0]).to(gate_up.scalar_type()), at::Tensor(), at::Tensor()};
  }
};

at::Tensor clamped_forward(const at::Tensor& pairs, MortiseCudaClamp clamp, at::ScalarType result) {
  const c10::OptionalDeviceGuard own_device(pairs.device());
  const int64_t rows = pairs.size(0), width = pairs.size(1) / 2;
  const at::Tensor out = at::empty({rows, width}, pairs.options().dtype(result));
  check_started(
      device_kernels(pairs.device())
          ->clamped_gate(pairs.const_data_ptr<float>(), rows, width, clamp, kernel_out(out), stream_of(out.device())),
      "clamped_gate");
  return out;
}

class KernelClampedGate : public torch::autograd::Function<KernelClampedGate> {
 public:
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& pairs, double alpha, double limit, int64_t result) {
    ctx->save_for_backward({pairs});
    ctx->saved_data["alpha"] = alpha;
    ctx->saved_data["limit"] = limit;
    return clamped_forward(pairs, {static_cast<float>(alpha), static_cast<float>(limit)},
                           static_cast<at::ScalarType>(result));
  }
  static variable_list backward(AutogradContext* ctx, const variable_list& grads) {
    const at::Tensor pairs = ctx->get_saved_variables()[0], d_out = grads[0].contiguous();
    const c10::OptionalDeviceGuard own_device(pairs.device());
    const MortiseCudaClamp clamp{static_cast<float>(ctx->saved_data["alpha"].toDouble()),
                                 static_cast<float>(ctx->saved_data["limit"].toDouble())};
    const at::Tensor d_pairs = at::empty(pairs.sizes(), d_out.options());
    check_started(device_kernels(pairs.device())
                      ->clamped_gate_backward(pairs.const_data_ptr<float>(), d_out.size(0), d_out.size(1), clamp,
                                              kernel_in(d_out), d_pairs.mutable_data_ptr(), stream_of(pairs.device())),
                  "clamped_gate_backward");
    return {d_pairs.to(pairs.scalar_type()), at::Tensor(), at::Tensor(), at::Tensor()};
  }
};

}  // namespace

MortiseCudaIn kernel_in(const at::Tensor& numbers) {
  return {numbers.const_data_ptr(), numbers.scalar_type() == at::kBFloat16 ? 1 : 0};
}
MortiseCudaOut kernel_out(const at::Tensor& numbers) {
  return {numbers.mutable_data_ptr(), numbers.scalar_type() == at::kBFloat16 ? 1 : 0};
}

at::Tensor gate_forward(const at::Tensor& gate_up, Activation activation, at::ScalarType result) {
  const c10::OptionalDeviceGuard own_device(gate_up.device());
  const int64_t rows = gate_up.size(0), width = gate_up.size(1) / 2;
  const at::Tensor out = at::empty({rows, width}, gate_up.options().dtype(result));
  check_started(device_kernels(gate_up.device())
                    ->gated(gate_up.const_data_ptr<float>(), rows, width, code_of(activation), kernel_out(out),
                            stream_of(out.device())),
                "gated");
  return out;
}

at::Tensor gate_backward(const at::Tensor& gate_up, Activation activation, const at::Tensor& d_out_NI) {
  const c10::OptionalDeviceGuard own_device(gate_up.device());
  const at::Tensor d_out = d_out_NI.contiguous();
  const at::Tensor d_gate_up = at::empty(gate_up.sizes(), d_out.options());
  check_started(device_kernels(gate_up.device())
                    ->gated_backward(gate_up.const_data_ptr<float>(), d_out.size(0), d_out.size(1), code_of(activation),
                                     kernel_in(d_out), d_gate_up.mutable_data_ptr(), stream_of(d_out.device())),
                "gated_backward");
  return d_gate_up;
}

at::Tensor kernel_gate(const at::Tensor& gate_up_N2I, Activation activation, at::ScalarType result) {
  const at::Tensor gate_up = gate_up_N2I.contiguous();
  if (!at::GradMode::is_enabled()) return gate_forward(gate_up, activation, result);
  return KernelGate::apply(gate_up, static_cast<int64_t>(activation), static_cast<int64_t>(result));
}

at::Tensor kernel_clamped_gate(const at::Tensor& pairs_N2I, double alpha, double limit, at::ScalarType result) {
  const at::Tensor pairs = pairs_N2I.contiguous();
  if (!at::GradMode::is_enabled())
    return clamped_forward(pairs, {static_cast<float>(alpha), static_cast<float>(limit)}, result);
  return KernelClampedGate::apply(pairs, alpha, limit, static_cast<int64_t>(result));
}

at::Tensor kernel_expert_gate(const at::Tensor& gate_up_N2I, const ModelConfig& config, at::ScalarType result) {
  const MoeConfig& moe = config.moe;
  return moe.is_gpt_oss ? kernel_clamped_gate(gate_up_N2I, moe.swiglu_alpha, moe.swiglu_limit, result)
                        : kernel_gate(gate_up_N2I, config.activation, result);
}

}  // namespace mortise
