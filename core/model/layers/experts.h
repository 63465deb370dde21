// The experts of a mixture: y_n = sum of weight * down_e(act(gate_e x_n) * up_e x_n) over the experts e of token n.
//
// The tokens are sorted by expert, so that each matrix is one product with all of its tokens (grouped GEMM). Products
// are cut into tiles that do not depend on the number of threads. A token's sum goes by ascending expert. An expert
// without tokens gets a gradient of zeros, as it does in transformers. gpt-oss's experts have biases, and a gate of their
// own (clamped_gate.h).
// Cost: 6 H I flops per token and expert, twice that backward, and 2 K rows of H copied. Thread rule: as libtorch.
#pragma once

#include <ATen/core/Tensor.h>

#include "model/layers/decoder.h"
#include "model/layers/decoder_weights.h"
#include "model/layers/router.h"

namespace mortise {

at::Tensor mixture(const at::Tensor& x_NH, const Routing& routing, const LayerMatrices& matrices,
                   const ExpertLeaves& leaves, const ModelConfig& config);
// The reference: one expert after the other, in ATen operations.
at::Tensor mixture_plain(const at::Tensor& x_NH, const Routing& routing, const LayerMatrices& matrices,
                         const ExpertLeaves& leaves, const ModelConfig& config);

}  // namespace mortise
