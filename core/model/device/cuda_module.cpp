// See cuda_module.h.
#include "model/device/cuda_module.h"

#include <dlfcn.h>
#include <fmt/core.h>

#include <filesystem>
#include <system_error>

#include "foundation/base/this_program.h"

namespace mortise {

std::string cuda_module_path(const char* name) {
  return (this_program().parent_path().parent_path() / "lib/mortise" / name).string();
}

void* open_cuda_module(const char* name, std::string& reason) {
  const std::string path = cuda_module_path(name);
  std::error_code ignored;
  if (!std::filesystem::exists(path, ignored)) {
    reason = path + " is not there";
    return nullptr;
  }
  void* const module = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (module != nullptr) return module;
  const char* const error = dlerror();
  reason = fmt::format("{} cannot be loaded: {}", path, error == nullptr ? "no reason given" : error);
  return nullptr;
}

}  // namespace mortise
