// See step_graphs.h.
#include "generate/device/step_graphs.h"

#include <dlfcn.h>
#include <fmt/core.h>

#include "foundation/base/log.h"
#include "model/device/cuda_module.h"

namespace mortise {
namespace {

StepGraphsFactory stand_in = nullptr;  // NOLINT: set by tests

std::unique_ptr<StepGraphs> no_graphs(const std::string& reason) {
  log_info(fmt::format("sampling starts each operation by itself, without CUDA graphs, because {}", reason));
  return nullptr;
}

}  // namespace

std::unique_ptr<StepGraphs> open_step_graphs(const c10::Device& device) {
  if (stand_in != nullptr) return stand_in();
  if (!device.is_cuda()) return nullptr;
  std::string error;
  void* const module = open_cuda_module(kGraphsModule, error);
  if (module == nullptr) return no_graphs(error);
  const auto entry = reinterpret_cast<GraphsEntry>(dlsym(module, kGraphsEntry));
  if (entry == nullptr) return no_graphs(fmt::format("{} has no function {}", kGraphsModule, kGraphsEntry));
  if (StepGraphs* const graphs = entry(device.index(), &error)) return std::unique_ptr<StepGraphs>(graphs);
  return no_graphs(error);
}

void set_step_graphs(StepGraphsFactory factory) { stand_in = factory; }

}  // namespace mortise
