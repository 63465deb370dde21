// See cuda_driver.h.
#include "model/device/cuda_driver.h"

#include <dlfcn.h>
#include <fmt/core.h>

#include <array>

#include "model/tensor/torch_version.h"

namespace mortise {
namespace {

// Numbers of cuda.h, which a build does not have.
constexpr int kSuccess = 0, kErrorNoDevice = 100;
constexpr int kMajorAttribute = 75, kMinorAttribute = 76;
constexpr int kNeededVersion = 13000;  // 1000 major + 10 minor; libtorch's wheel is built for CUDA 13.0
// What the wheel has kernels for. bfloat16's attention needs more.
constexpr int kOldestCapability = 75, kOldestWithBfloat16 = 80;

Error no_gpu(std::string what, std::string next) {
  return {ErrorKind::kConfig, std::move(what), "model.device", std::move(next)};
}

constexpr const char* kUseCpu = "or set model.device = \"cpu\"";

// The driver's functions. Stays loaded: libtorch uses it too.
class Driver {
 public:
  static Result<Driver> load(const std::string& path) {
    Driver driver;
    driver.library_ = dlopen(path.c_str(), RTLD_NOW);
    if (driver.library_ == nullptr) {
      return no_gpu(fmt::format("no NVIDIA driver was found: {}", dlerror()),
                    fmt::format("install the driver on a machine with a GPU, start the container with access to it, {}",
                                kUseCpu));
    }
    return driver;
  }

  // An Error if the call fails, or if the driver is too old to have it.
  template <class... Arguments>
  Result<> call(const char* name, Arguments... arguments) const {
    using Function = int (*)(Arguments...);
    const auto function = reinterpret_cast<Function>(dlsym(library_, name));
    if (function == nullptr) return no_gpu(fmt::format("the NVIDIA driver has no {}", name), kUpdate);
    const int code = function(arguments...);
    if (code == kSuccess) return {};
    if (code == kErrorNoDevice) {
      return no_gpu("the NVIDIA driver sees no GPU",
                    fmt::format("check `nvidia-smi` and CUDA_VISIBLE_DEVICES, {}", kUseCpu));
    }
    return no_gpu(fmt::format("{} of the NVIDIA driver failed: {}", name, text_of(code)),
                  fmt::format("check `nvidia-smi`, {}", kUseCpu));
  }

  static constexpr const char* kUpdate = "update the driver to 580 or newer, or set model.device = \"cpu\"";

 private:
  [[nodiscard]] std::string text_of(int code) const {
    using Function = int (*)(int, const char**);
    const auto function = reinterpret_cast<Function>(dlsym(library_, "cuGetErrorString"));
    const char* text = nullptr;
    if (function == nullptr || function(code, &text) != kSuccess || text == nullptr) return std::to_string(code);
    return fmt::format("{} ({})", text, code);
  }

  void* library_ = nullptr;
};

}  // namespace

Result<GpuFacts> ask_driver(const CudaPlaces& places, int index, bool needs_bfloat16) {
  const Driver driver = TRY(Driver::load(places.driver));
  // Before cuInit, which an old driver may refuse without saying why.
  int version = 0, count = 0, device = 0;
  TRY(driver.call("cuDriverGetVersion", &version));
  if (version < kNeededVersion) {
    return no_gpu(fmt::format("the NVIDIA driver is too old: it supports CUDA {}.{}, and libtorch needs 13.0",
                              version / 1000, version % 1000 / 10),
                  Driver::kUpdate);
  }
  TRY(driver.call("cuInit", 0U));
  TRY(driver.call("cuDeviceGetCount", &count));
  if (index >= count) {
    return no_gpu(fmt::format("there is no GPU number {}: the driver sees {}, counted from 0", index, count),
                  "name another one, and check CUDA_VISIBLE_DEVICES");
  }
  TRY(driver.call("cuDeviceGet", &device, index));
  GpuFacts gpu;
  gpu.num_visible = count;
  std::array<char, 256> name{};
  TRY(driver.call("cuDeviceGetName", name.data(), static_cast<int>(name.size()) - 1, device));
  gpu.name = name.data();
  TRY(driver.call("cuDeviceGetAttribute", &gpu.major, kMajorAttribute, device));
  TRY(driver.call("cuDeviceGetAttribute", &gpu.minor, kMinorAttribute, device));
  size_t bytes = 0;
  TRY(driver.call("cuDeviceTotalMem_v2", &bytes, device));
  gpu.memory_bytes = bytes;
  const int capability = 10 * gpu.major + gpu.minor;
  if (capability < kOldestCapability) {
    return no_gpu(fmt::format("the GPU {} has compute capability {}.{}, and libtorch {} has kernels from 7.5 on",
                              gpu.name, gpu.major, gpu.minor, kTorchVersion),
                  "name a newer GPU, or set model.device = \"cpu\"");
  }
  if (needs_bfloat16 && capability < kOldestWithBfloat16) {
    return no_gpu(fmt::format("model.dtype is bfloat16, which needs compute capability 8.0, and the GPU {} has {}.{}",
                              gpu.name, gpu.major, gpu.minor),
                  "set model.dtype = \"float32\", or name a newer GPU");
  }
  return gpu;
}

}  // namespace mortise
