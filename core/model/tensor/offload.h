// Offload: tensors whose numbers lie in files (foundation/base/file_memory.h) in place of memory. Shapes, versions and
// every tensor that shares a storage stay as they were; only the address of the numbers changes. A tensor on a device has
// no memory there once its numbers lie in a file: whoever uses them gets copies on the device, and puts changes back.
//
// Without a folder, numbers of a device lie in the host's memory in place of files, and those of the host stay where they are.
// All tensors then get their memory on the device back from fetch() to rest().
//
// Small tensors share a file: a process may have 65,530 mappings (vm.max_map_count), and a mixture of experts has tens of
// thousands of parameters. Each tensor begins at a page of its own.
// Thread rule: take() and zeros() on one thread while nothing uses the storage; send(), receive() and finish() on one
// thread; release() from any thread.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Storage.h>

#include <cstddef>
#include <memory>
#include <optional>
#include <span>
#include <unordered_map>
#include <utility>
#include <vector>

#include "foundation/base/env.h"
#include "foundation/base/file_memory.h"
#include "foundation/base/result.h"
#include "foundation/base/tensor_view.h"
#include "model/device/staged_copies.h"

namespace mortise {

class Offload {
 public:
  // `folder` exists. Files get no names in it.
  explicit Offload(Path folder) : folder_(std::move(folder)) {}
  // In the host's memory.
  Offload() = default;

  // Moves the numbers of the tensor's storage into a file. Does nothing if they are there already, or if the storage has
  // no memory. On a device the tensor is contiguous, and all of its storage.
  Result<> take(const at::Tensor& tensor);
  // A tensor of zeros in a file, whose pages are not touched.
  Result<at::Tensor> zeros(at::IntArrayRef sizes, const at::TensorOptions& options);
  // The process keeps no pages of the tensor's storage until something uses it again. Does nothing if it was not taken.
  void release(const at::Tensor& tensor) const;
  void release_all() const;
  // Copies between numbers in a file and a device, in the order of its stream (device/staged_copies.h). The process keeps no
  // pages of the file behind them. finish() waits until all that was received is in the files.
  void send(const at::Tensor& from_file, const at::Tensor& to_device) const;
  void receive(const at::Tensor& from_device, const at::Tensor& to_file) const;
  void finish() const;
  // What the file has of a tensor on a device, to read and write. Undefined if that has memory.
  [[nodiscard]] at::Tensor numbers_in_file(const at::Tensor& tensor) const;
  // The tensor itself, or a copy on its device of what the file has of it; and such a copy back to the file.
  [[nodiscard]] at::Tensor on_device(const at::Tensor& tensor) const;
  void put_back(const at::Tensor& tensor, const at::Tensor& on_device) const;
  // Only without a folder. Every tensor that was taken has memory on its device, with the numbers of the host, and loses it
  // again, with its numbers on the host. rest() waits for the device.
  void fetch();
  void rest();
  [[nodiscard]] bool holds(const at::Tensor& tensor) const;
  // The bytes of a tensor that was taken, for a checkpoint. The pages leave the process behind the reader, so that a save
  // needs no memory for them.
  [[nodiscard]] static std::shared_ptr<const TensorSource> source(const at::Tensor& tensor);

 private:
  StagedCopies& copies_with(const at::Tensor& on_device) const;
  Result<> take_from_device(const at::Tensor& tensor);
  // Room of so many bytes, which is zeros. Whoever holds the pointer holds its file.
  Result<std::shared_ptr<std::byte>> make_room(size_t num_bytes);

  std::optional<Path> folder_;        // none: the host's memory
  std::shared_ptr<FileMemory> open_;  // the file that small tensors share
  size_t used_ = 0;                   // bytes of it
  std::vector<std::shared_ptr<const FileMemory>> files_;
  std::unordered_map<const void*, size_t> bytes_of_;  // by the address of the numbers
  // The numbers of tensors on a device, by their storage, which has no memory. It is held, so that nobody gets its address.
  struct DeviceNumbers {
    at::Tensor tensor;   // has the storage
    at::Tensor in_file;  // all of it, or in the host's memory
  };
  std::unordered_map<const c10::StorageImpl*, DeviceNumbers> device_numbers_;
  mutable std::unique_ptr<StagedCopies> copies_;  // null: there were none
};

}  // namespace mortise
