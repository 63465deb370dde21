// The masks of lora_dropout.h as ATen operations, for tensors that lie on a device: the same bits as the CPU's kernel.
//
// Cost: that of tensor/philox_operators.h for each block of rows; a block's temporaries take about 200 MB.
// Thread rule: as libtorch.
#pragma once

#include <ATen/core/Tensor.h>

#include "model/layers/lora_dropout.h"

namespace mortise {

// Philox blocks whose temporaries are in memory at the same time.
inline constexpr int64_t kDropoutBlocks = int64_t{1} << 22;

// x times `kept`, and times `dropped` where the mask drops a feature.
at::Tensor masked_by_operators(const at::Tensor& x_NI, const LoraDropout& dropout, const DropoutMask& mask, double kept,
                               double dropped, int64_t most_blocks = kDropoutBlocks);

}  // namespace mortise
