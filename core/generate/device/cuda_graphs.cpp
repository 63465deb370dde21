// libmortise_graphs.so: graphs by at::cuda::CUDAGraph. See step_graphs.h.
//
// All graphs of a sampler share one pool of memory. This is safe because one of them runs at a time, and what one gives is
// read before the next one starts. libtorch takes no more captures into a pool whose graphs are all gone, and memory that
// moves drops them. A small graph that stays keeps the pool open.
#include <ATen/cuda/CUDAEvent.h>
#include <ATen/cuda/CUDAGraph.h>
#include <ATen/ops/zeros.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/util/Exception.h>

#include <exception>

#include "generate/device/step_graphs.h"

namespace mortise {
namespace {

class CudaGraph final : public StepGraph {
 public:
  void replay() override { graph_.replay(); }
  at::cuda::CUDAGraph& graph() { return graph_; }

 private:
  at::cuda::CUDAGraph graph_;
};

class CudaGraphs final : public StepGraphs {
 public:
  explicit CudaGraphs(c10::DeviceIndex gpu)
      : side_(c10::cuda::getStreamFromPool(/*isHighPriority=*/false, gpu)), pool_(at::cuda::graph_pool_handle()) {
    at::Tensor number;
    const auto work = [&] { number = at::zeros({1}, at::TensorOptions().device(c10::Device(c10::kCUDA, gpu))); };
    warm_up(work);
    keeper_ = capture(work);
  }

  void warm_up(const std::function<void()>& work) final {
    const c10::cuda::CUDAStream own = c10::cuda::getCurrentCUDAStream(side_.device_index());
    at::cuda::CUDAEvent before, after;
    before.record(own);
    before.block(side_);
    {
      const c10::cuda::CUDAStreamGuard on_side(side_);
      work();
    }
    after.record(side_);
    after.block(own);
  }

  std::unique_ptr<StepGraph> capture(const std::function<void()>& work) final {
    try {
      return captured(work);
    } catch (const c10::OutOfMemoryError&) {
      throw;
    } catch (const c10::Error& error) {
      TORCH_CHECK(false, error.what_without_backtrace(),
                  " (while a CUDA graph was captured; set rollout.enforce_eager = true to sample without graphs)");
    }
  }

 private:
  std::unique_ptr<StepGraph> captured(const std::function<void()>& work) {
    auto out = std::make_unique<CudaGraph>();
    const c10::cuda::CUDAStreamGuard on_side(side_);
    // Other threads may use the GPU meanwhile, such as the one that watches collectives.
    out->graph().capture_begin(pool_, cudaStreamCaptureModeThreadLocal);
    try {
      work();
    } catch (...) {
      try {
        out->graph().capture_end();
      } catch (const std::exception&) {  // NOLINT: the first error tells more
      }
      throw;
    }
    out->graph().capture_end();
    return out;
  }

  c10::cuda::CUDAStream side_;
  at::cuda::MempoolId_t pool_;
  std::unique_ptr<StepGraph> keeper_;
};

}  // namespace
}  // namespace mortise

extern "C" __attribute__((visibility("default"))) mortise::StepGraphs* mortise_step_graphs(int gpu,
                                                                                           std::string* error) {
  try {
    return new mortise::CudaGraphs(static_cast<c10::DeviceIndex>(gpu));
  } catch (const std::exception& failure) {
    *error = failure.what();
    return nullptr;
  }
}
