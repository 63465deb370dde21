// The kernels of core/cuda by their emulator, for models whose tensors are on the CPU. It stands in for libmortise_cuda.so.
#pragma once

#include "generate/device/kernel_table.h"

namespace mortise::test {

// While one lives, sampling by the code of a device uses the emulated kernels.
class EmulatedKernels {
 public:
  EmulatedKernels() { set_cpu_kernels(&kernels_); }
  EmulatedKernels(const EmulatedKernels&) = delete;
  EmulatedKernels& operator=(const EmulatedKernels&) = delete;
  ~EmulatedKernels() { set_cpu_kernels(nullptr); }

 private:
  DeviceKernels kernels_ = {mortise_cuda_rms_norm,  mortise_cuda_head_norm, mortise_cuda_silu, mortise_cuda_rope_write,
                            mortise_cuda_attention, mortise_cuda_sample,    mortise_cuda_top};
};

}  // namespace mortise::test
