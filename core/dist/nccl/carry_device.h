// Ranks whose tensors may be on a GPU. Their collectives go through NCCL. Bytes, counters, and tensors of the host go
// through Gloo as before, and the watch is the same.
#pragma once

#include <c10/core/Device.h>

#include "dist/communicator.h"

namespace mortise {

// A collective: every rank calls it, each with its own GPU, before the first tensor of a device moves. Connects the ranks.
// Does nothing for the CPU, for one process, and if it was called before. libtorch's CUDA half is loaded. Errors of kind
// config say what is missing; those of kind kRankFailure, that the GPUs cannot be connected. Groups of neighbours()
// and strided() move such tensors too.
Result<> carry_device(Communicator& ranks, const at::Device& device);

}  // namespace mortise
