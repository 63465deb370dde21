// The C functions of libmortise_cuda.so (cuda/module.h) that sampling and training on a device use, found when they are
// first needed. What is started and copied here does not wait for the device.
//
// Kernels start on libtorch's current stream of the device of their tensors. They start on the thread's current device:
// whoever starts one sets it first (c10::OptionalDeviceGuard). Operators of libtorch do so themselves.
// Thread rule: one thread at a time.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>
#include <c10/core/Event.h>

#include <cstdint>
#include <optional>
#include <string>

#include "cuda/module.h"

namespace mortise {

struct DeviceKernels {
  decltype(&mortise_cuda_rms_norm) rms_norm = nullptr;
  decltype(&mortise_cuda_head_norm) head_norm = nullptr;
  decltype(&mortise_cuda_gated) gated = nullptr;
  decltype(&mortise_cuda_rope_write) rope_write = nullptr;
  decltype(&mortise_cuda_attention) attention = nullptr;
  decltype(&mortise_cuda_sample) sample = nullptr;
  decltype(&mortise_cuda_top) top = nullptr;
  decltype(&mortise_cuda_clamped_gate) clamped_gate = nullptr;
  decltype(&mortise_cuda_route) route = nullptr;
  decltype(&mortise_cuda_group_experts) group_experts = nullptr;
  decltype(&mortise_cuda_expert_product) expert_product = nullptr;
  decltype(&mortise_cuda_sum_experts) sum_experts = nullptr;
  decltype(&mortise_cuda_rms_norm_backward) rms_norm_backward = nullptr;
  decltype(&mortise_cuda_gated_backward) gated_backward = nullptr;
  decltype(&mortise_cuda_clamped_gate_backward) clamped_gate_backward = nullptr;
  decltype(&mortise_cuda_rotate_heads) rotate_heads = nullptr;
  decltype(&mortise_cuda_rotate_heads_backward) rotate_heads_backward = nullptr;
  decltype(&mortise_cuda_head_chunk) head_chunk = nullptr;
  decltype(&mortise_cuda_head_finish) head_finish = nullptr;
  decltype(&mortise_cuda_head_backward) head_backward = nullptr;
  decltype(&mortise_cuda_square_sums) square_sums = nullptr;
  decltype(&mortise_cuda_clip) clip = nullptr;
  decltype(&mortise_cuda_adamw) adamw = nullptr;
};

// The kernels for tensors on `device`. Null if there are none: libtorch's operators compute then. For a GPU the first
// call loads the module from lib/mortise, and the log says why if it cannot.
const DeviceKernels* device_kernels(const c10::Device& device);

// Why a GPU of this machine has no kernels, as far as that is known without loading them. Empty if it has some.
std::string why_no_gpu_kernels();

// For tests: the kernels for tensors on all devices but GPUs, such as those of cuda/emulate, which must outlive their use.
// Null: none. `for_cpu_tensors`: also for the CPU.
void set_cpu_kernels(const DeviceKernels* kernels, bool for_cpu_tensors = true);

// A copy of `host` on `device`. On a GPU the host does not wait for it, nor for what was started before.
at::Tensor sent_to(const c10::Device& device, const at::Tensor& host);
// `numbers` themselves if they lie on `device`, else such a copy of them from the host.
at::Tensor on_device(const c10::Device& device, const at::Tensor& numbers);

// A copy of a tensor on the host that a GPU makes behind what was started before. The GPU continues meanwhile.
class HostCopy {
 public:
  explicit HostCopy(const at::Tensor& numbers);
  // Waits until the copy is there.
  const at::Tensor& wait();
  // How many copies this thread has waited for, also of the CPU's numbers. For tests.
  [[nodiscard]] static int64_t num_waits();

 private:
  at::Tensor host_;
  std::optional<c10::Event> copied_;
  bool is_there_ = false;
};

// libtorch's current stream of a GPU, a cudaStream_t. Null for the CPU.
void* stream_of(const c10::Device& device);

// Throws c10::Error if a kernel did not start.
void check_started(int code, const char* kernel);

}  // namespace mortise
