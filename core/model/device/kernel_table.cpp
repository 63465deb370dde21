// See kernel_table.h.
#include "model/device/kernel_table.h"

#include <ATen/ops/empty.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <c10/util/Exception.h>
#include <dlfcn.h>
#include <fmt/core.h>

#include <filesystem>
#include <optional>
#include <string>
#include <system_error>

#include "foundation/base/log.h"
#include "model/device/cuda_module.h"

namespace mortise {
namespace {

constexpr const char* kCudaModule = "libmortise_cuda.so";

const DeviceKernels* test_kernels = nullptr;  // NOLINT: set by tests
bool test_kernels_for_cpu = true;             // NOLINT: set by tests
thread_local int64_t num_host_waits = 0;

template <class Function>
bool find_function(void* module, const char* name, Function& out) {
  out = reinterpret_cast<Function>(dlsym(module, name));
  if (out == nullptr) log_warn(fmt::format("{} has no function {}: build all of Mortise again", kCudaModule, name));
  return out != nullptr;
}

std::optional<DeviceKernels> load_module() {
  std::string reason;
  void* const module = open_cuda_module(kCudaModule, reason);
  if (module == nullptr) {
    log_info("libtorch's operators sample and train, because " + reason);
    return std::nullopt;
  }
  DeviceKernels out;
  const auto find_sampling = [&] {
    return find_function(module, "mortise_cuda_rms_norm", out.rms_norm) &&
           find_function(module, "mortise_cuda_head_norm", out.head_norm) &&
           find_function(module, "mortise_cuda_gated", out.gated) &&
           find_function(module, "mortise_cuda_rope_write", out.rope_write) &&
           find_function(module, "mortise_cuda_attention", out.attention) &&
           find_function(module, "mortise_cuda_sample", out.sample) &&
           find_function(module, "mortise_cuda_top", out.top) &&
           find_function(module, "mortise_cuda_clamped_gate", out.clamped_gate) &&
           find_function(module, "mortise_cuda_route", out.route) &&
           find_function(module, "mortise_cuda_group_experts", out.group_experts) &&
           find_function(module, "mortise_cuda_expert_product", out.expert_product) &&
           find_function(module, "mortise_cuda_sum_experts", out.sum_experts);
  };
  const auto find_training = [&] {
    return find_function(module, "mortise_cuda_rms_norm_backward", out.rms_norm_backward) &&
           find_function(module, "mortise_cuda_gated_backward", out.gated_backward) &&
           find_function(module, "mortise_cuda_clamped_gate_backward", out.clamped_gate_backward) &&
           find_function(module, "mortise_cuda_rotate_heads", out.rotate_heads) &&
           find_function(module, "mortise_cuda_rotate_heads_backward", out.rotate_heads_backward) &&
           find_function(module, "mortise_cuda_head_chunk", out.head_chunk) &&
           find_function(module, "mortise_cuda_head_finish", out.head_finish) &&
           find_function(module, "mortise_cuda_head_backward", out.head_backward) &&
           find_function(module, "mortise_cuda_square_sums", out.square_sums) &&
           find_function(module, "mortise_cuda_clip", out.clip) &&
           find_function(module, "mortise_cuda_adamw", out.adamw);
  };
  const bool has_all = find_sampling() && find_training();
  return has_all ? std::optional(out) : std::nullopt;
}

}  // namespace

const DeviceKernels* device_kernels(const c10::Device& device) {
  if (!device.is_cuda()) return device.is_cpu() && !test_kernels_for_cpu ? nullptr : test_kernels;
  static const std::optional<DeviceKernels> loaded = load_module();
  return loaded ? &*loaded : nullptr;
}

std::string why_no_gpu_kernels() {
  const std::string path = cuda_module_path(kCudaModule);
  std::error_code ignored;
  return std::filesystem::exists(path, ignored) ? "" : path + " is not there";
}

void set_cpu_kernels(const DeviceKernels* kernels, bool for_cpu_tensors) {
  test_kernels = kernels;
  test_kernels_for_cpu = for_cpu_tensors;
}

// A copy from memory that is not pinned would wait for all earlier work on the stream.
at::Tensor sent_to(const c10::Device& device, const at::Tensor& host) {
  const auto there = at::TensorOptions().device(device);
  return device.is_cuda() ? host.pin_memory().to(there, /*non_blocking=*/true) : host.to(there);
}

at::Tensor on_device(const c10::Device& device, const at::Tensor& numbers) {
  return numbers.is_cpu() ? sent_to(device, numbers) : numbers;
}

HostCopy::HostCopy(const at::Tensor& numbers) {
  if (numbers.is_cpu()) {
    host_ = numbers.clone();  // later work may write there before it is read
    return;
  }
  const c10::Device device = numbers.device();
  if (!device.is_cuda()) {
    host_ = numbers.to(at::kCPU);
    return;
  }
  host_ = at::empty(numbers.sizes(), numbers.options().device(at::kCPU).pinned_memory(true));
  host_.copy_(numbers, /*non_blocking=*/true);
  copied_.emplace(device.type());
  copied_->record(c10::impl::VirtualGuardImpl(device.type()).getStream(device));
}

const at::Tensor& HostCopy::wait() {
  if (!is_there_) ++num_host_waits;
  is_there_ = true;
  if (copied_) copied_->synchronize();
  copied_.reset();
  return host_;
}

int64_t HostCopy::num_waits() { return num_host_waits; }

void* stream_of(const c10::Device& device) {
  if (!device.is_cuda()) return nullptr;
  return c10::impl::VirtualGuardImpl(device.type()).getStream(device).native_handle();
}

void check_started(int code, const char* kernel) {
  TORCH_CHECK(code == 0, "the kernel ", kernel, " did not start: CUDA error ", code);
}

}  // namespace mortise
