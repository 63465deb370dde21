// The gates of MLPs by the kernels of core/cuda, with their gradients. Rows are float32, and results too or bfloat16.
// Backward keeps the rows alone. Thread rule: as libtorch.
#pragma once

#include <ATen/core/Tensor.h>

#include "model/device/kernel_table.h"
#include "model/weights/model_config.h"

namespace mortise {

// How kernels read and write rows of float32 or bfloat16 numbers.
MortiseCudaIn kernel_in(const at::Tensor& numbers);
MortiseCudaOut kernel_out(const at::Tensor& numbers);

// act(gate) * up of rows [gate | up]; outside autograd.
at::Tensor gate_forward(const at::Tensor& gate_up_N2I, Activation activation, at::ScalarType result);
// The gradient of gate_up, in the dtype of d_out.
at::Tensor gate_backward(const at::Tensor& gate_up_N2I, Activation activation, const at::Tensor& d_out_NI);
at::Tensor kernel_gate(const at::Tensor& gate_up_N2I, Activation activation, at::ScalarType result);

// The gate of gpt-oss (clamped_gate.h).
at::Tensor kernel_clamped_gate(const at::Tensor& pairs_N2I, double alpha, double limit, at::ScalarType result);

// The gate that the experts of this family have.
at::Tensor kernel_expert_gate(const at::Tensor& gate_up_N2I, const ModelConfig& config, at::ScalarType result);

}  // namespace mortise
