// A mixture of experts by the kernels of core/cuda (cuda/kernels/experts.cuh), in passes without gradients. The host does not
// wait for the device: it need not know how many tokens an expert has. So a pass of them can be captured as a graph.
//
// The products are cut into tiles: of 4 or 16 rows in float32, without tensor cores, and of 16 or 64 in bfloat16, with them. They
// read a weight once for each tile of its expert. They are meant for few tokens of each expert, where reading the weights takes
// most of the time. A token's numbers depend neither on other tokens nor, but for rounding, on the size of the tiles.
// Cost: as `mixture`. Thread rule: as libtorch.
#pragma once

#include <ATen/core/Tensor.h>

#include "model/layers/decoder.h"
#include "model/layers/decoder_weights.h"
#include "model/layers/router.h"

namespace mortise {

// Whether kernels compute the experts of so many tokens of this model: of few enough that libtorch's products, one expert
// after the other, are not faster. is_rounded: the matrices are bfloat16. All layers have the same answer.
[[nodiscard]] bool kernels_take_experts(const ModelConfig& config, int64_t num_tokens, bool is_rounded);
// The most tokens of such a pass; 0: kernels compute none.
[[nodiscard]] int64_t most_tokens_of_kernels(const ModelConfig& config, bool is_rounded);
// Whether kernels can read these matrices of experts: each lies in one piece, and begins at a multiple of 16 bytes.
[[nodiscard]] bool kernels_read_experts(const LayerMatrices& matrices);

// Precondition: no gradients, kernels_take_experts() and kernels_read_experts(). What adapts experts is merged into the matrices.
at::Tensor kernel_mixture(const at::Tensor& x_NH, const Routing& routing, const LayerMatrices& matrices,
                          const ExpertLeaves& leaves, const ModelConfig& config);

// As route() without a RouterPass. Precondition: no gradients.
Routing kernel_route(const at::Tensor& logits_NE, const MoeConfig& moe);

// Bytes that kernel_mixture() needs for each token at the same time, with its result. `number`: bytes of what products read.
[[nodiscard]] int64_t kernel_mixture_bytes(const ModelConfig& config, int64_t number);

}  // namespace mortise
