// Offload: tensors whose numbers lie in files (foundation/base/file_memory.h) in place of memory. Shapes, versions and
// every tensor that shares a storage stay as they were; only the address of the numbers changes.
// Thread rule: take() on one thread while nothing uses the storage; release() from any thread.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Storage.h>

#include <memory>
#include <vector>

#include "foundation/base/env.h"
#include "foundation/base/file_memory.h"
#include "foundation/base/result.h"

namespace mortise {

class Offload {
 public:
  // `folder` exists. Files get no names in it.
  explicit Offload(Path folder) : folder_(std::move(folder)) {}

  // Moves the numbers of the tensor's storage into a file. Does nothing if they are there already, or if the storage has
  // no memory.
  Result<> take(const at::Tensor& tensor);
  // The process keeps no pages of the tensor's storage until something uses it again. Does nothing if it was not taken.
  void release(const at::Tensor& tensor) const;
  void release_all() const;

 private:
  [[nodiscard]] const FileMemory* find(const at::Tensor& tensor) const;

  Path folder_;
  std::vector<std::shared_ptr<const FileMemory>> files_;  // the storages hold them too
};

}  // namespace mortise
