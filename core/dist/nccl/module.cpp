// The only file of libmortise_nccl.so. See nccl_module.h.
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroupNCCL.hpp>

#include <exception>

#include "dist/nccl/nccl_module.h"

extern "C" __attribute__((visibility("default"))) c10d::Backend* mortise_nccl_group(mortise::NcclRequest* request) {
  try {
    auto options = c10d::ProcessGroupNCCL::Options::create(/*is_high_priority_stream=*/false);
    options->timeout = request->timeout;
    return c10::make_intrusive<c10d::ProcessGroupNCCL>(c10::make_intrusive<c10d::PrefixStore>("nccl", request->store),
                                                       request->rank, request->size, options)
        .release();
  } catch (const std::exception& error) {
    request->error = error.what();
    return nullptr;
  }
}
