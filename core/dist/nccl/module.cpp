// libmortise_nccl.so: the group of the ranks. See nccl_module.h.
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroupNCCL.hpp>

#include <cstdlib>
#include <exception>

#include "dist/nccl/nccl_module.h"

// libtorch's constructor writes the options, which hold ncclConfig_t by value. Its size in the nccl.h of this file must not
// be smaller than in that of libtorch (apps/dev/cuda_requirements.txt).
static_assert(NCCL_VERSION_CODE >= NCCL_VERSION(2, 28, 9), "nccl.h is older than libtorch's NCCL");

extern "C" __attribute__((visibility("default"))) c10d::Backend* mortise_nccl_group(mortise::NcclRequest* request) {
  try {
    // By default c10d's own threads end the process when a collective fails or hangs (ErrorHandlingMode). The watch of the
    // ranks (dist/watch) does this, and says which rank it was. A value that the user has set remains.
    setenv("TORCH_NCCL_ASYNC_ERROR_HANDLING", "0", 0);  // NoHandling
    setenv("TORCH_NCCL_ENABLE_MONITORING", "0", 0);
    auto options = c10d::ProcessGroupNCCL::Options::create(/*is_high_priority_stream=*/false);
    options->timeout = request->timeout;
    return c10::make_intrusive<c10d::ProcessGroupNCCL>(
               c10::make_intrusive<c10d::PrefixStore>(request->prefix, request->store), request->rank, request->size,
               options)
        .release();
  } catch (const std::exception& error) {
    request->error = error.what();
    return nullptr;
  }
}
