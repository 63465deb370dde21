// libmortise_nccl.so: collectives on tensors of GPUs, libtorch's ProcessGroupNCCL. It is a module of its own because its
// symbols are in libtorch's CUDA half, which only a run on a GPU loads. The module uses them from there.
#pragma once

#include <c10/util/intrusive_ptr.h>

#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include <chrono>
#include <cstddef>
#include <memory>
#include <span>
#include <string>

#include "dist/weights/weight_link.h"
#include "foundation/base/result.h"

namespace mortise {

// What the module is asked for: the group of all ranks. `error` gets the reason if there is none.
struct NcclRequest {
  c10::intrusive_ptr<c10d::Store> store;
  int rank = 0;
  int size = 1;
  std::chrono::milliseconds timeout{1'800'000};
  std::string prefix = "nccl";  // begins its keys in the store
  std::string error = {};
};

// NCCL alone, without torch.distributed: a rank that sends bytes to all others that know its unique id. Its calls give
// what went wrong, or nothing. Thread rule: one thread at a time, except stop().
class NcclIdGroup {
 public:
  virtual ~NcclIdGroup() = default;
  [[nodiscard]] virtual std::string unique_id() const = 0;  // 128 bytes
  // Waits for the others. Ends with a sum of one float32 over all ranks, which the others expect.
  virtual std::string join(int rank, int size) = 0;
  virtual std::string send(std::span<const std::byte> bytes) = 0;  // host memory; a broadcast from rank 0
  virtual void stop() = 0;                                         // ends what waits
};

// Pieces on a GPU, which stay until the object goes. share() gives what went wrong, or nothing.
class CudaSharer {
 public:
  virtual ~CudaSharer() = default;
  virtual std::string share(std::span<const std::byte> bytes, SharedPiece& out) = 0;
};

inline constexpr const char* kNcclModule = "libmortise_nccl.so";
inline constexpr const char* kNcclEntry = "mortise_nccl_group";
// The caller owns the group; null if it cannot be made.
using NcclEntry = c10d::Backend* (*)(NcclRequest* request);

inline constexpr const char* kNcclIdEntry = "mortise_nccl_id_group";
// The caller owns the group; null if it cannot be made, and `error` says why.
using NcclIdEntry = NcclIdGroup* (*)(int gpu, std::chrono::milliseconds timeout, std::string* error);

inline constexpr const char* kSharerEntry = "mortise_cuda_sharer";
using SharerEntry = CudaSharer* (*)(int gpu, std::string* error);

// Loads the module, which lies in lib/mortise next to bin/, and makes the group. libtorch's CUDA half must be loaded.
// Errors (kind config) say what is missing. `path`: of the module, for tests; empty: where it is installed.
Result<c10::intrusive_ptr<c10d::Backend>> open_nccl_group(NcclRequest request, const std::string& path = {});
// The same for NCCL alone, on the GPU of this number. `timeout`: of each call.
Result<std::unique_ptr<NcclIdGroup>> open_nccl_id_group(int gpu, std::chrono::milliseconds timeout,
                                                        const std::string& path = {});
Result<std::unique_ptr<CudaSharer>> open_cuda_sharer(int gpu, const std::string& path = {});

}  // namespace mortise
