// See step_graphs.h.
#include "generate/device/step_graphs.h"

#include <dlfcn.h>
#include <fmt/core.h>

#include <filesystem>
#include <system_error>

#include "foundation/base/log.h"
#include "foundation/base/this_program.h"

namespace mortise {
namespace {

StepGraphsFactory cpu_graphs = nullptr;  // NOLINT: set by tests

std::unique_ptr<StepGraphs> no_graphs(const std::string& reason) {
  log_info(fmt::format("sampling starts each operation by itself, without CUDA graphs, because {}", reason));
  return nullptr;
}

}  // namespace

std::unique_ptr<StepGraphs> open_step_graphs(const c10::Device& device) {
  if (device.is_cpu()) return cpu_graphs == nullptr ? nullptr : cpu_graphs();
  if (!device.is_cuda()) return nullptr;
  const std::string path = (this_program().parent_path().parent_path() / "lib/mortise" / kGraphsModule).string();
  std::error_code ignored;
  if (!std::filesystem::exists(path, ignored)) return no_graphs(path + " is not there");
  void* const module = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (module == nullptr) {
    const char* const reason = dlerror();
    return no_graphs(fmt::format("{} cannot be loaded: {}", path, reason == nullptr ? "no reason given" : reason));
  }
  const auto entry = reinterpret_cast<GraphsEntry>(dlsym(module, kGraphsEntry));
  if (entry == nullptr) return no_graphs(fmt::format("{} has no function {}", path, kGraphsEntry));
  std::string error;
  if (StepGraphs* const graphs = entry(device.index(), &error)) return std::unique_ptr<StepGraphs>(graphs);
  return no_graphs(error);
}

void set_cpu_graphs(StepGraphsFactory factory) { cpu_graphs = factory; }

}  // namespace mortise
