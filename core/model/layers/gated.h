// The gate of the MLP: act(gate) * up from a fused row [gate | up], with act = silu (SwiGLU) or tanh-GELU (GeGLU; both
// Shazeer 2020). Both are gate * sigmoid(z(gate)): z = g, and z = 2 sqrt(2 / pi) (g + 0.044715 g^3).
// Cost: one exp per element each way; backward recomputes the sigmoid from the saved input. Rows are spread over
// threads.
#pragma once

#include <ATen/core/Tensor.h>

#include "model/weights/model_config.h"

namespace mortise {

at::Tensor gated(const at::Tensor& gate_up_N2I, Activation activation);        // [N, 2 I] -> [N, I]
at::Tensor gated_plain(const at::Tensor& gate_up_N2I, Activation activation);  // the reference: ATen operations

}  // namespace mortise
