// The layers of training and sampling by the kernels of core/cuda (device/kernel_table.h), where there is one for a layer; the
// others are libtorch's operators (operators.h). Activations are float32; the inputs of products of bfloat16 matrices are
// written in bfloat16.
//
// Norms with their residual sum, gates, and the heads that attention reads each take one launch forward and one or two
// backward, which read each number once. The MLP of a dense layer is one function. Backward keeps what the products and
// attention read, the inputs of norms, and gate and up. A number that was written in bfloat16 gets its gradient in bfloat16
// too, from a product whose sums are float32. Sums have a fixed order: two runs have the same bits. Without a graph the
// norms of heads change their input, which only the product before them has made.
// Thread rule: one thread at a time.
#pragma once

#include <ATen/core/Tensor.h>

#include "model/layers/operators.h"

namespace mortise {

// Null: there are no kernels for tensors of this device and dtype.
const LayerCode* kernel_layers(const at::TensorOptions& options);

}  // namespace mortise
