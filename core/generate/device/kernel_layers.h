// The layers of a decoding step by the kernels of kernel_table.h, where there is one for a layer; the others are libtorch's
// operators. For float32 and without gradients. Norms and gates write new tensors. The norms of heads change their input.
// Thread rule: one thread at a time.
#pragma once

#include "model/device/kernel_table.h"
#include "model/layers/operators.h"

namespace mortise {

// Valid until the next call, which may name other kernels.
const LayerCode& kernel_layers(const DeviceKernels& kernels);

}  // namespace mortise
