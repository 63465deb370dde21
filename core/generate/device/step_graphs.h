// Work on a device that is captured once and started again as a whole (CUDA graphs). libtorch's at::cuda::CUDAGraph captures
// it in libmortise_graphs.so, which the first sampling loads from lib/mortise: its symbols are in libtorch's CUDA half.
// Captured work reads what changes from memory of the device, because sizes, pointers and numbers of the host stay as they were.
// Thread rule: one thread at a time.
#pragma once

#include <c10/core/Device.h>

#include <functional>
#include <memory>
#include <string>

namespace mortise {

class StepGraph {
 public:
  virtual ~StepGraph() = default;
  virtual void replay() = 0;
};

class StepGraphs {
 public:
  virtual ~StepGraphs() = default;
  // Does the work now, on the stream of capture(). What libraries make when they are first used there must not be captured:
  // cuBLAS takes its handle and its workspace of that stream.
  virtual void warm_up(const std::function<void()>& work) = 0;
  // The work, not yet done. Its tensors stay where they are as long as the graph.
  virtual std::unique_ptr<StepGraph> capture(const std::function<void()>& work) = 0;
};

using StepGraphsFactory = std::unique_ptr<StepGraphs> (*)();
inline constexpr const char* kGraphsModule = "libmortise_graphs.so";
inline constexpr const char* kGraphsEntry = "mortise_step_graphs";
// The caller owns the result; null if it cannot be made, and `error` says why.
using GraphsEntry = StepGraphs* (*)(int gpu, std::string* error);

// Graphs for work on `device`. Null if there are none: the log says why if it is a GPU.
std::unique_ptr<StepGraphs> open_step_graphs(const c10::Device& device);
// For tests: what makes graphs in place of the module, on any device. Its null means that there are no graphs.
void set_step_graphs(StepGraphsFactory factory);

}  // namespace mortise
