// See nccl_module.h.
#include "dist/nccl/nccl_module.h"

#include <dlfcn.h>
#include <fmt/core.h>

#include <filesystem>
#include <system_error>

#include "foundation/base/this_program.h"

namespace mortise {

namespace {

// PREFIX/lib/mortise, seen from PREFIX/bin/mortise or from a test in PREFIX/tests.
std::string module_path() {
  return (this_program().parent_path().parent_path() / "lib/mortise" / kNcclModule).string();
}

// Who needs the module, and what to do without it.
struct Need {
  const char* who;
  const char* otherwise;
};
constexpr Need kRanks = {"several ranks on GPUs need", "start one process"};
constexpr Need kWeights = {"weights that go from GPU to GPU need", "send the weights by files"};

// A function of the module.
template <class Entry>
Result<Entry> load_entry(const std::string& given, const char* name, const Need& need) {
  const auto cannot = [&](const std::string& what, const std::string& next) {
    return Error{ErrorKind::kConfig, what, "model.device", fmt::format("{}, or {}", next, need.otherwise)};
  };
  const std::string path = given.empty() ? module_path() : given;
  std::error_code ignored;
  if (!std::filesystem::exists(path, ignored))
    return cannot(fmt::format("{} {}, and {} is not there", need.who, kNcclModule, path),
                  "build Mortise where nvcc and NCCL's header are (CUDA's toolkit and libnccl-dev 2.28.9 or newer)");
  void* const module = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (module == nullptr) {
    const char* const reason = dlerror();
    return cannot(fmt::format("{} cannot be loaded: {}", path, reason == nullptr ? "no reason given" : reason),
                  "fetch libtorch's CUDA half again with `./dev deps --cuda`");
  }
  const auto entry = reinterpret_cast<Entry>(dlsym(module, name));
  if (entry == nullptr) return cannot(fmt::format("{} has no function {}", path, name), "build all of Mortise again");
  return entry;
}

}  // namespace

Result<c10::intrusive_ptr<c10d::Backend>> open_nccl_group(NcclRequest request, const std::string& given) {
  const auto entry = TRY(load_entry<NcclEntry>(given, kNcclEntry, kRanks));
  c10d::Backend* const group = entry(&request);
  if (group != nullptr) return c10::intrusive_ptr<c10d::Backend>::reclaim(group);
  return Error{ErrorKind::kConfig, fmt::format("NCCL cannot make a group of the ranks: {}", request.error),
               "model.device", "give each rank a GPU of its own (NCCL_DEBUG=INFO says more)"};
}

Result<std::unique_ptr<NcclIdGroup>> open_nccl_id_group(int gpu, std::chrono::milliseconds timeout,
                                                        const std::string& given) {
  const auto entry = TRY(load_entry<NcclIdEntry>(given, kNcclIdEntry, kWeights));
  std::string error;
  if (NcclIdGroup* const group = entry(gpu, timeout, &error)) return std::unique_ptr<NcclIdGroup>(group);
  return Error{ErrorKind::kConfig, "NCCL cannot send weights from this process: " + error, "model.device",
               "set model.device to a GPU, or send the weights by files"};
}

Result<std::unique_ptr<CudaSharer>> open_cuda_sharer(int gpu, const std::string& given) {
  const auto entry = TRY(load_entry<SharerEntry>(given, kSharerEntry, kWeights));
  std::string error;
  if (CudaSharer* const sharer = entry(gpu, &error)) return std::unique_ptr<CudaSharer>(sharer);
  return Error{ErrorKind::kConfig, "this process cannot share memory of a GPU: " + error, "model.device",
               "set model.device to the GPU of the server, or send the weights by files"};
}

}  // namespace mortise
