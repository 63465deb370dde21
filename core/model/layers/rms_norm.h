// RMSNorm (Zhang and Sennrich 2019): on its own, with the residual sum before it, and over the heads inside a qkv row.
//
//   y = x / sqrt(mean(x^2) + eps) * weight
// The squares are summed in float lanes for float (rows are short), the rest per row. Backward recomputes only x *
// rstd. Cost: one pass forward, two backward; memory: rstd per row. Rows are spread over threads. The weight's gradient
// is summed per thread block of fixed size, so it does not depend on the number of threads.
#pragma once

#include <ATen/core/Tensor.h>

#include <utility>

#include "model/layers/linear.h"

namespace mortise {

// y = norm(x_NH) * weight_H.
at::Tensor rms_norm(const at::Tensor& x_NH, const at::Tensor& weight_H, double eps);
at::Tensor rms_norm_plain(const at::Tensor& x_NH, const at::Tensor& weight_H, double eps);

// {x + residual, norm(x + residual) * weight}: the pair at every block border of a pre-norm decoder.
std::pair<at::Tensor, at::Tensor> add_rms_norm(const at::Tensor& x_NH, const at::Tensor& residual_NH,
                                               const at::Tensor& weight_H, double eps);
// The same if the sum is known: x and the residual are only there for their gradients.
std::pair<at::Tensor, at::Tensor> known_add_rms_norm(const at::Tensor& x_NH, const at::Tensor& residual_NH,
                                                     const KnownResult& sum_NH, const at::Tensor& weight_H, double eps);

// The norms of queries and keys (qwen3). If the weights are undefined, the family has none.
struct HeadNorms {
  at::Tensor q_weight_D = {}, k_weight_D = {};
  double eps = 0.0;
};

// qkv [N, (Hq + 2 Hkv) D] with each head of q and of k normed over D (qwen3); v is copied.
at::Tensor qk_norm(const at::Tensor& qkv_NQ, const at::Tensor& q_weight_D, const at::Tensor& k_weight_D,
                   int64_t num_heads, int64_t num_kv_heads, double eps);
at::Tensor qk_norm_plain(const at::Tensor& qkv_NQ, const at::Tensor& q_weight_D, const at::Tensor& k_weight_D,
                         int64_t num_heads, int64_t num_kv_heads, double eps);

}  // namespace mortise
