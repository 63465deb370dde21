// See compute_device.h.
#include "model/device/compute_device.h"

#include <ATen/Context.h>
#include <c10/util/Exception.h>
#include <dlfcn.h>
#include <fmt/core.h>

#include <cstdlib>
#include <filesystem>

#include "foundation/base/log.h"
#include "foundation/base/text.h"
#include "model/tensor/torch_version.h"

namespace mortise {
namespace {

// What "cpu-as-device" opens.
ComputeDevice& cpu_as_device() {
  static ComputeDevice device{at::kCPU, /*by_operators=*/true, "the CPU, with the code of a device"};
  return device;
}

class LogWarnings final : public c10::WarningHandler {
 public:
  void process(const c10::Warning& warning) override { log_warn_once("libtorch: " + warning.msg()); }
};

std::string folder_of(const CudaPlaces& places) {
  return places.libraries.empty() ? cuda_library_folder() : places.libraries;
}

Result<> load_libraries(const CudaPlaces& places) {
  TRY(find_cuda_library(places));
  const std::string path = fmt::format("{}/{}", folder_of(places), kCudaLibrary);
  // A fixed order of sums in cuBLAS. Read when its library starts.
  setenv("CUBLAS_WORKSPACE_CONFIG", ":4096:8", /*overwrite=*/0);
  if (dlopen(path.c_str(), RTLD_NOW | RTLD_GLOBAL) == nullptr) {
    return Error{ErrorKind::kConfig, fmt::format("libtorch's CUDA half cannot be loaded: {}", dlerror()),
                 "model.device", "fetch it again: remove its folder and run `./dev deps --cuda`"};
  }
  return {};
}

Result<ComputeDevice> open_cuda(int index, bool needs_bfloat16, const CudaPlaces& places) {
  const GpuFacts gpu = TRY(ask_driver(places, index, needs_bfloat16));
  TRY(load_libraries(places));
  if (!at::globalContext().hasCUDA()) {
    return Error{ErrorKind::kInternal, "libtorch finds no CUDA although the driver works", "model.device",
                 "report this with the output of `mortise doctor` and `nvidia-smi`"};
  }
  // Where an operation has a deterministic form, take it; cuda_attention.cpp asks for that of attention. Others warn.
  static LogWarnings warnings;
  c10::WarningUtils::set_warning_handler(&warnings);  // this thread's; autograd's threads pass theirs on to it
  at::globalContext().setDeterministicAlgorithms(true, /*warn_only=*/true);
  at::globalContext().setDeterministicFillUninitializedMemory(false);  // would fill every new tensor
  at::globalContext().setAllowBF16ReductionCuBLAS(false);              // products with a bfloat16 result add in float32
  ComputeDevice out{at::Device(at::kCUDA, static_cast<c10::DeviceIndex>(index)), /*by_operators=*/true, {}};
  out.text = fmt::format("cuda:{}, {} with {}", index, gpu.name, format_bytes(gpu.memory_bytes));
  return out;
}

}  // namespace

void set_cpu_as_device(const ComputeDevice& device) { cpu_as_device() = device; }

std::string cuda_library_folder() {
  Dl_info info{};
  if (dladdr(reinterpret_cast<const void*>(&at::globalContext), &info) == 0 || info.dli_fname == nullptr) return {};
  std::error_code ignored;
  const std::filesystem::path own = std::filesystem::weakly_canonical(info.dli_fname, ignored).parent_path();
  if (std::filesystem::exists(own / kCudaLibrary, ignored)) return own.string();  // a whole wheel
  // deps/torch-VERSION/torch/lib, and deps/torch-cuda-VERSION/torch/lib
  const std::filesystem::path deps = own.parent_path().parent_path().parent_path();
  return (deps / fmt::format("torch-cuda-{}", kTorchVersion) / "torch/lib").string();
}

Result<> find_cuda_library(const CudaPlaces& places) {
  const std::string folder = folder_of(places);
  std::error_code ignored;
  if (std::filesystem::exists(fmt::format("{}/{}", folder, kCudaLibrary), ignored)) return {};
  return Error{ErrorKind::kConfig, fmt::format("libtorch's CUDA half is not in {}", folder), "model.device",
               "fetch it with `./dev deps --cuda` (2.3 GB), or set model.device = \"cpu\""};
}

Result<ComputeDevice> open_device(const DeviceName& name, bool needs_bfloat16, const CudaPlaces& places) {
  switch (name.kind) {
    case DeviceKind::kCuda:
      return open_cuda(name.index, needs_bfloat16, places);
    case DeviceKind::kCpuAsDevice:
      return cpu_as_device();
    case DeviceKind::kAuto:
    case DeviceKind::kCpu:
      break;
  }
  return ComputeDevice{};
}

}  // namespace mortise
