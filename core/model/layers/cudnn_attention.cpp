// See cudnn_attention.h.
#include "model/layers/cudnn_attention.h"

#include <c10/util/Exception.h>
#include <dlfcn.h>

#include "model/device/cuda_module.h"

namespace mortise {
namespace {

// One for the process. Never freed: when the program ends, CUDA may already be gone, and cuDNN's handle needs it.
CudnnAttention* opened = nullptr;  // NOLINT

}  // namespace

Result<> open_cudnn_attention() {
  if (opened != nullptr) return {};
  const auto cannot = [](const std::string& what) {
    return Error{ErrorKind::kConfig, "cuDNN's attention cannot be used: " + what, "",
                 "name a GPU, and build after `./dev deps --cudnn` where cudnn.h and CUDA's headers are"};
  };
  std::string error;
  void* const module = open_cuda_module(kCudnnModule, error);
  if (module == nullptr) return cannot(error);
  const auto entry = reinterpret_cast<CudnnEntry>(dlsym(module, kCudnnEntry));
  if (entry == nullptr) return cannot(std::string(kCudnnModule) + " has no function " + kCudnnEntry);
  opened = entry(&error);
  return opened != nullptr ? Result<>() : cannot(error);
}

bool uses_cudnn_attention() { return opened != nullptr; }

CudnnAttention& cudnn_attention() {
  TORCH_CHECK(opened != nullptr, "cuDNN's attention is not open");
  return *opened;
}

}  // namespace mortise
