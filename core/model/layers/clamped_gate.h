// The gate of gpt-oss: (up + 1) * gate * sigmoid(alpha * gate), with gate at most `limit` and up within +-limit, from rows
// that hold a unit's gate before its up. A number beyond a limit gets no gradient.
// Cost: one exp per unit each way; backward recomputes the sigmoid. Rows are spread over threads.
#pragma once

#include <ATen/core/Tensor.h>

namespace mortise {

at::Tensor clamped_gate(const at::Tensor& pairs_N2I, double alpha, double limit);  // [N, 2 I] -> [N, I]
at::Tensor clamped_gate_plain(const at::Tensor& pairs_N2I, double alpha,
                              double limit);  // the reference: ATen operations

}  // namespace mortise
