// The code of a device on CPU tensors, for tests that compare it with the CPU's kernels. A run calls it "cpu-as-device".
#pragma once

#include "model/device/compute_device.h"

namespace mortise {

inline const ComputeDevice kAsDevice{.by_operators = true, .text = "the CPU, as a device"};

}  // namespace mortise
