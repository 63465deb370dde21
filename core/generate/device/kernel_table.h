// The C functions of libmortise_cuda.so (cuda/module.h) that sampling on a device uses, found when they are first needed.
//
// Kernels start on libtorch's current stream of the device of their tensors.
// Thread rule: one thread at a time.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

#include <string>

#include "cuda/module.h"

namespace mortise {

struct DeviceKernels {
  decltype(&mortise_cuda_rms_norm) rms_norm = nullptr;
  decltype(&mortise_cuda_head_norm) head_norm = nullptr;
  decltype(&mortise_cuda_silu) silu = nullptr;
  decltype(&mortise_cuda_rope_write) rope_write = nullptr;
  decltype(&mortise_cuda_attention) attention = nullptr;
  decltype(&mortise_cuda_sample) sample = nullptr;
  decltype(&mortise_cuda_top) top = nullptr;
};

// The kernels for tensors on `device`. Null if there are none: libtorch's operators compute then. For a GPU the first call
// loads the module from lib/mortise, and the log says why if it cannot.
const DeviceKernels* device_kernels(const c10::Device& device);

// For tests: the kernels for tensors on the CPU, such as those of cuda/emulate. Null: none. They must outlive their use.
void set_cpu_kernels(const DeviceKernels* kernels);

// A copy of `host` on `device`. On a GPU the host does not wait for it, nor for what was started before.
at::Tensor sent_to(const c10::Device& device, const at::Tensor& host);

// libtorch's current stream of a GPU, a cudaStream_t. Null for the CPU.
void* stream_of(const c10::Device& device);

// Throws c10::Error if a kernel did not start.
void check_started(int code, const char* kernel);

}  // namespace mortise
