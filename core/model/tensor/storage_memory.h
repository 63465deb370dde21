// Memory of tensors that exist without it for a while: shape, gradient and versions stay, and every tensor that shares the
// storage sees the change. Thread rule: one thread at a time.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <c10/core/Allocator.h>
#include <c10/core/DeviceGuard.h>

namespace mortise {

inline void free_memory(const c10::Storage& storage) {
  storage.unsafeGetStorageImpl()->set_data_ptr_noswap(c10::DataPtr(nullptr, storage.device()));
}

// Its numbers are not set. An allocator of GPUs takes memory of the current one.
inline void allocate_memory(const c10::Storage& storage) {
  c10::StorageImpl* const impl = storage.unsafeGetStorageImpl();
  const c10::DeviceGuard guard(impl->device());
  impl->set_data_ptr_noswap(c10::GetAllocator(impl->device_type())->allocate(impl->nbytes()));
}

inline bool has_memory(const at::Tensor& tensor) {
  return tensor.numel() == 0 || tensor.storage().unsafeGetStorageImpl()->data() != nullptr;
}

// A tensor that has none yet.
inline at::Tensor without_memory(at::IntArrayRef sizes, const at::TensorOptions& options) {
  const at::Tensor tensor = at::empty({0}, options);
  const auto bytes = static_cast<size_t>(c10::multiply_integers(sizes)) * tensor.element_size();
  const c10::Storage storage(c10::Storage::use_byte_size_t(), bytes, c10::DataPtr(nullptr, tensor.device()),
                             c10::GetAllocator(tensor.device().type()), /*resizable=*/true);
  return tensor.set_(storage, 0, sizes);
}

// As at::empty_like, contiguous: with memory if `from` has it.
inline at::Tensor empty_alike(const at::Tensor& from, const at::TensorOptions& options) {
  return has_memory(from) ? at::empty(from.sizes(), options) : without_memory(from.sizes(), options);
}

}  // namespace mortise
