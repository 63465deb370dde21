// Where a model lies and computes: on the CPU with its own kernels, or on a device by ATen operations.
//
// libtorch's CUDA half is loaded late, and only for a run that asks for a GPU. libtorch remembers what it found when it
// was first asked for CUDA, so open_device() should be the first use of libtorch in the process. Several ranks have
// joined with Gloo before; docs/cuda.md says that runs of them on GPUs have not been tested.
// Thread rule: one thread.
#pragma once

#include <ATen/core/Tensor.h>

#include <string>

#include "foundation/base/device_name.h"
#include "foundation/base/result.h"
#include "model/device/cuda_driver.h"

namespace mortise {

struct ComputeDevice {
  at::Device device = at::kCPU;
  bool by_operators = false;     // the code of a device, also on CPU tensors (DeviceKind::kCpuAsDevice)
  std::string text = "the CPU";  // for people
};

// Not for kAuto. Errors (kind config) say what a GPU lacks: a driver, a newer one, libraries, the architecture.
// `needs_bfloat16`: the run multiplies bfloat16 matrices.
Result<ComputeDevice> open_device(const DeviceName& name, bool needs_bfloat16, const CudaPlaces& places = {});

// For tests: what DeviceKind::kCpuAsDevice opens from now on, such as a device whose memory the host cannot reach.
void set_cpu_as_device(const ComputeDevice& device);

// Looks whether libtorch's CUDA half is there, and loads nothing.
Result<> find_cuda_library(const CudaPlaces& places = {});

// The exit code of tests and benchmarks on a machine without the device (docs/exit_codes.md).
inline constexpr int kExitNoDevice = 13;

inline constexpr const char* kCudaLibrary = "libtorch_cuda.so";
// The folder in which `./dev deps --cuda` puts libtorch's CUDA half: next to the libtorch that is loaded.
[[nodiscard]] std::string cuda_library_folder();

// The tensor itself, or its copy on the host.
inline at::Tensor on_host(const at::Tensor& tensor) { return tensor.is_cpu() ? tensor : tensor.to(at::kCPU); }

}  // namespace mortise
