// The gate of the MLP: act(gate) * up from a fused row [gate | up], with act = silu (SwiGLU) or tanh-GELU (GeGLU; both
// Shazeer 2020). Both are gate * sigmoid(z(gate)): z = g, and z = 2 sqrt(2 / pi) (g + 0.044715 g^3).
// Cost: one exp per element each way; backward recomputes the sigmoid from the saved input. Rows are spread over
// threads.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

#include "model/weights/model_config.h"

namespace mortise {

at::Tensor gated(const at::Tensor& gate_up_N2I, Activation activation);  // [N, 2 I] -> [N, I]
// The same of rows in memory, on the calling thread: rows [begin, end) of [N, 2 I] and [N, I], with I = width.
void gated_rows(Activation activation, const float* gate_up, float* out, int64_t begin, int64_t end, int64_t width);
// And the gradient of gate_up from that of the result.
void gated_rows_backward(Activation activation, const float* gate_up, const float* dout, float* dgate_up, int64_t begin,
                         int64_t end, int64_t width);
// The same, and the result once more, but for rounding.
void gated_rows_backward(Activation activation, const float* gate_up, const float* dout, float* dgate_up, float* out,
                         int64_t begin, int64_t end, int64_t width);
at::Tensor gated_plain(const at::Tensor& gate_up_N2I, Activation activation);  // the reference: ATen operations

}  // namespace mortise
