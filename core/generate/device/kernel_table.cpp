// See kernel_table.h.
#include "generate/device/kernel_table.h"

#include <c10/core/impl/VirtualGuardImpl.h>
#include <c10/util/Exception.h>
#include <dlfcn.h>
#include <fmt/core.h>

#include <optional>
#include <string>

#include "foundation/base/log.h"
#include "model/device/cuda_module.h"

namespace mortise {
namespace {

constexpr const char* kCudaModule = "libmortise_cuda.so";

const DeviceKernels* cpu_kernels = nullptr;  // NOLINT: set by tests

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
    log_info("sampling uses libtorch's operators, because " + reason);
    return std::nullopt;
  }
  DeviceKernels out;
  const bool has_all = find_function(module, "mortise_cuda_rms_norm", out.rms_norm) &&
                       find_function(module, "mortise_cuda_head_norm", out.head_norm) &&
                       find_function(module, "mortise_cuda_silu", out.silu) &&
                       find_function(module, "mortise_cuda_rope_write", out.rope_write) &&
                       find_function(module, "mortise_cuda_attention", out.attention) &&
                       find_function(module, "mortise_cuda_sample", out.sample) &&
                       find_function(module, "mortise_cuda_top", out.top);
  return has_all ? std::optional(out) : std::nullopt;
}

}  // namespace

const DeviceKernels* device_kernels(const c10::Device& device) {
  if (device.is_cpu()) return cpu_kernels;
  if (!device.is_cuda()) return nullptr;
  static const std::optional<DeviceKernels> loaded = load_module();
  return loaded ? &*loaded : nullptr;
}

void set_cpu_kernels(const DeviceKernels* kernels) { cpu_kernels = kernels; }

// A copy from memory that is not pinned would wait for all earlier work on the stream.
at::Tensor sent_to(const c10::Device& device, const at::Tensor& host) {
  const auto there = at::TensorOptions().device(device);
  return device.is_cuda() ? host.pin_memory().to(there, /*non_blocking=*/true) : host.to(there);
}

void* stream_of(const c10::Device& device) {
  if (device.is_cpu()) return nullptr;
  return c10::impl::VirtualGuardImpl(device.type()).getStream(device).native_handle();
}

void check_started(int code, const char* kernel) {
  TORCH_CHECK(code == 0, "the kernel ", kernel, " did not start: CUDA error ", code);
}

}  // namespace mortise
