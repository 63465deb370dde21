// See kernel_layers.h.
#include "generate/device/kernel_layers.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>

#include <atomic>

#include "model/layers/gated.h"

namespace mortise {
namespace {

std::atomic<const DeviceKernels*> kernels_in_use = nullptr;  // NOLINT: LayerCode has plain functions

// In float32, or as a product of bfloat16 matrices reads it.
template <at::ScalarType kResult>
MortiseCudaOut out_of(const at::Tensor& out) {
  return {out.mutable_data_ptr(), kResult == at::kBFloat16 ? 1 : 0};
}

template <at::ScalarType kResult>
at::Tensor norm_by_kernel(const at::Tensor& x_NH, const at::Tensor& weight_H, double eps) {
  const at::Tensor x = x_NH.contiguous(), weight = weight_H.contiguous();
  const at::Tensor out = at::empty_like(x, x.options().dtype(kResult));
  check_started(kernels_in_use.load()->rms_norm(x.const_data_ptr<float>(), nullptr, weight.const_data_ptr<float>(),
                                                static_cast<float>(eps), x.size(0), x.size(1), nullptr,
                                                out_of<kResult>(out), stream_of(x.device())),
                "rms_norm");
  return out;
}

template <at::ScalarType kResult>
std::pair<at::Tensor, at::Tensor> add_norm_by_kernel(const at::Tensor& x_NH, const at::Tensor& residual_NH,
                                                     const at::Tensor& weight_H, double eps) {
  const at::Tensor x = x_NH.contiguous(), residual = residual_NH.contiguous(), weight = weight_H.contiguous();
  const at::Tensor sum = at::empty_like(x), out = at::empty_like(x, x.options().dtype(kResult));
  check_started(
      kernels_in_use.load()->rms_norm(x.const_data_ptr<float>(), residual.const_data_ptr<float>(),
                                      weight.const_data_ptr<float>(), static_cast<float>(eps), x.size(0), x.size(1),
                                      sum.mutable_data_ptr<float>(), out_of<kResult>(out), stream_of(x.device())),
      "rms_norm");
  return {sum, out};
}

at::Tensor head_norm_by_kernel(const at::Tensor& qkv_NQ, const at::Tensor& q_weight_D, const at::Tensor& k_weight_D,
                               int64_t num_heads, int64_t num_kv_heads, double eps) {
  const at::Tensor qkv = qkv_NQ.contiguous(), q = q_weight_D.contiguous(), k = k_weight_D.contiguous();
  const MortiseCudaHeads heads{static_cast<int32_t>(num_heads), static_cast<int32_t>(num_kv_heads),
                               static_cast<int32_t>(q.size(0))};
  check_started(
      kernels_in_use.load()->head_norm(qkv.mutable_data_ptr<float>(), qkv.size(0), heads, q.const_data_ptr<float>(),
                                       k.const_data_ptr<float>(), static_cast<float>(eps), stream_of(qkv.device())),
      "head_norm");
  return qkv;
}

template <at::ScalarType kResult>
at::Tensor gated_by_kernel(const at::Tensor& gate_up_N2I, Activation activation) {
  if (activation != Activation::kSilu) return gated_plain(gate_up_N2I, activation);
  const at::Tensor gate_up = gate_up_N2I.contiguous();
  const int64_t rows = gate_up.size(0), width = gate_up.size(1) / 2;
  const at::Tensor out = at::empty({rows, width}, gate_up.options().dtype(kResult));
  check_started(kernels_in_use.load()->silu(gate_up.const_data_ptr<float>(), rows, width, out_of<kResult>(out),
                                            stream_of(out.device())),
                "silu");
  return out;
}

template <at::ScalarType kResult>
LayerCode layers_with_results() {
  LayerCode out = operator_layers();
  out.rms_norm = norm_by_kernel<kResult>;
  out.add_rms_norm = add_norm_by_kernel<kResult>;
  out.qk_norm = head_norm_by_kernel;
  out.gated = gated_by_kernel<kResult>;
  return out;
}

}  // namespace

const LayerCode& kernel_layers(const DeviceKernels& kernels) {
  static const LayerCode before_rounded = layers_with_results<at::kBFloat16>();
  static const LayerCode code = [] {
    LayerCode out = layers_with_results<at::kFloat>();
    out.before_rounded = &before_rounded;
    return out;
  }();
  kernels_in_use = &kernels;
  return code;
}

}  // namespace mortise
