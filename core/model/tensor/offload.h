// Offload: tensors whose numbers lie in files (foundation/base/file_memory.h) in place of memory. Shapes, versions and
// every tensor that shares a storage stay as they were; only the address of the numbers changes.
//
// Small tensors share a file: a process may have 65,530 mappings (vm.max_map_count), and a mixture of experts has tens of
// thousands of parameters. Each tensor begins at a page of its own.
// Thread rule: take() and zeros() on one thread while nothing uses the storage; release() from any thread.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Storage.h>

#include <cstddef>
#include <memory>
#include <span>
#include <unordered_map>
#include <utility>
#include <vector>

#include "foundation/base/env.h"
#include "foundation/base/file_memory.h"
#include "foundation/base/result.h"
#include "foundation/base/tensor_view.h"

namespace mortise {

class Offload {
 public:
  // `folder` exists. Files get no names in it.
  explicit Offload(Path folder) : folder_(std::move(folder)) {}

  // Moves the numbers of the tensor's storage into a file. Does nothing if they are there already, or if the storage has
  // no memory.
  Result<> take(const at::Tensor& tensor);
  // A tensor of zeros in a file, whose pages are not touched.
  Result<at::Tensor> zeros(at::IntArrayRef sizes, const at::TensorOptions& options);
  // The process keeps no pages of the tensor's storage until something uses it again. Does nothing if it was not taken.
  void release(const at::Tensor& tensor) const;
  void release_all() const;
  [[nodiscard]] bool holds(const at::Tensor& tensor) const;
  // The bytes of a tensor that was taken, for a checkpoint. The pages leave the process behind the reader, so that a save
  // needs no memory for them.
  [[nodiscard]] static std::shared_ptr<const TensorSource> source(const at::Tensor& tensor);

 private:
  // Room of so many bytes, which is zeros. Whoever holds the pointer holds its file.
  Result<std::shared_ptr<std::byte>> make_room(size_t num_bytes);

  Path folder_;
  std::shared_ptr<FileMemory> open_;  // the file that small tensors share
  size_t used_ = 0;                   // bytes of it
  std::vector<std::shared_ptr<const FileMemory>> files_;
  std::unordered_map<const void*, size_t> bytes_of_;  // by the address of the numbers
};

}  // namespace mortise
