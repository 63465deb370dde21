// Layers whose activations are not kept for backward but computed again there (Chen et al. 2016, arXiv 1604.06174), and
// how many of them a memory limit needs.
//
// The second computation runs the same kernels on the same numbers, so the gradients have the same bits. Cost: one more
// forward of each such layer. Only its input is kept. Thread rule: as the layers.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <utility>

#include "model/weights/model_config.h"

namespace mortise {

using ResidualPair = std::pair<at::Tensor, at::Tensor>;  // hidden_NH, and that normed for what comes next
using ResidualLayer = std::function<ResidualPair(const at::Tensor& hidden_NH, const at::Tensor& normed_NH)>;

// layer(hidden, normed), computed again in backward. Precondition: GradMode is on, `hidden` requires grad, and what
// `layer` refers to lives until backward has run.
ResidualPair recomputed(const ResidualLayer& layer, const at::Tensor& hidden_NH, const at::Tensor& normed_NH);

// Bytes of a number: of an activation, and of what products keep of their inputs.
struct NumberSizes {
  NumberSizes(int64_t of_all) : NumberSizes(of_all, of_all) {}  // NOLINT(google-explicit-constructor): the common case
  NumberSizes(int64_t of_activation, int64_t of_product_input)
      : activation(of_activation), product_input(of_product_input) {}
  int64_t activation;
  int64_t product_input;
  bool by_operators = false;  // the layers are those of a device (operators.h), whose operations keep more
  bool by_kernels = false;    // ... and the kernels of core/cuda compute them where they can (kernel_layers.h)
  // An adapter is trained, which keeps what it reads as activations. Counted with by_operators alone: a GPU's memory has no
  // room for a wrong estimate.
  bool has_adapter = false;
  // What the products of a layer keep.
  [[nodiscard]] int64_t kept_input() const { return by_operators && has_adapter ? activation : product_input; }
};

// Bytes that one layer keeps for backward, per token.
struct LayerMemory {
  int64_t kept = 0;        // bytes of a layer as it is
  int64_t recomputed = 0;  // bytes of a layer that is computed again
};
LayerMemory layer_memory(const ModelConfig& config, const NumberSizes& sizes);

// How many layers, from the first on, must be recomputed so that a pass over `num_tokens` fits into `budget_bytes`; all
// of them if nothing fits. The first ones, because backward reaches them after it has freed the others' memory.
int64_t layers_to_recompute(const ModelConfig& config, const NumberSizes& sizes, int64_t num_tokens,
                            int64_t budget_bytes);

}  // namespace mortise
