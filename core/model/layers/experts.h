// The experts of a mixture: y_n = sum of weight * down_e(act(gate_e x_n) * up_e x_n) over the experts e of token n.
//
// The tokens are sorted by expert, so that each matrix is one product with all of its tokens (grouped GEMM). Products
// are cut into tiles that do not depend on the number of threads. A token's sum goes by ascending expert. An expert
// without tokens gets a gradient of zeros, as it does in transformers. gpt-oss's experts have biases, and a gate of their
// own (clamped_gate.h).
// Cost: 6 H I flops per token and expert, twice that backward, and 2 K rows of H copied. Thread rule: as libtorch.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <vector>

#include "model/layers/decoder.h"
#include "model/layers/decoder_weights.h"
#include "model/layers/router.h"
#include "model/tensor/blas.h"

namespace mortise {

// y[rows of e] = x[rows of e] op(weight[e]) for every expert. `offsets` [E + 1]: where the rows of each expert begin.
void grouped_product(const at::Tensor& x_MI, const at::Tensor& weight_EAB, blas::Trans trans,
                     const std::vector<int64_t>& offsets, const at::Tensor& y_MO);
// dw[e] = dy[rows of e]^T x[rows of e]; zeros where there are none.
void grouped_weight_gradient(const at::Tensor& dy_MO, const at::Tensor& x_MI, const std::vector<int64_t>& offsets,
                             const at::Tensor& dw_EOI);

at::Tensor mixture(const at::Tensor& x_NH, const Routing& routing, const LayerMatrices& matrices,
                   const ExpertLeaves& leaves, const ModelConfig& config);
// The reference: one expert after the other, in ATen operations. Adapted experts are functions of A and B.
at::Tensor mixture_plain(const at::Tensor& x_NH, const Routing& routing, const LayerMatrices& matrices,
                         const ExpertLeaves& frozen, const ModelConfig& config);
// The same for any device. Adapted experts are their merged matrices, as in `mixture`: the pass makes no copy of them.
at::Tensor mixture_operators(const at::Tensor& x_NH, const Routing& routing, const LayerMatrices& matrices,
                             const ExpertLeaves& leaves, const ModelConfig& config);

// The gate of an expert between its products, on any device.
using GateOfExpert = std::function<at::Tensor(const at::Tensor& gate_up_M2I)>;
// As mixture_operators(), with this gate.
at::Tensor mixture_by_gate(const at::Tensor& x_NH, const Routing& routing, const LayerMatrices& matrices,
                           const ExpertLeaves& leaves, const ModelConfig& config, const GateOfExpert& gate);

// What an expert makes of its tokens.
using MlpOfExpert = std::function<at::Tensor(const at::Tensor& x_MH, size_t expert)>;
// The weighted sum over a token's experts, on any device. The host waits for the number of tokens of each expert.
at::Tensor sum_of_experts(const at::Tensor& x_NH, const Routing& routing, int64_t num_experts, const MlpOfExpert& mlp);
// The leaves of an expert, if they lie expert by expert, as many for each.
std::vector<at::Tensor> leaves_of_expert(const std::vector<at::Tensor>& leaves, size_t expert, size_t num_experts);

}  // namespace mortise
