// libmortise_nccl.so: collectives on tensors of GPUs, libtorch's ProcessGroupNCCL. It is a module of its own because its
// symbols are in libtorch's CUDA half, which only a run on a GPU loads. The module uses them from there.
#pragma once

#include <c10/util/intrusive_ptr.h>

#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include <chrono>
#include <string>

#include "foundation/base/result.h"

namespace mortise {

// What the module is asked for: the group of all ranks. `error` gets the reason if there is none.
struct NcclRequest {
  c10::intrusive_ptr<c10d::Store> store;
  int rank = 0;
  int size = 1;
  std::chrono::milliseconds timeout{1'800'000};
  std::string error = {};
};

inline constexpr const char* kNcclModule = "libmortise_nccl.so";
inline constexpr const char* kNcclEntry = "mortise_nccl_group";
// The module's only function. The caller owns the group; null if it cannot be made.
using NcclEntry = c10d::Backend* (*)(NcclRequest* request);

// Loads the module, which lies in lib/mortise next to bin/, and makes the group. libtorch's CUDA half must be loaded.
// Errors (kind config) say what is missing. `path`: of the module, for tests; empty: where it is installed.
Result<c10::intrusive_ptr<c10d::Backend>> open_nccl_group(NcclRequest request, const std::string& path = {});

}  // namespace mortise
