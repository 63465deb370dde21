// See offload.h.
#include "model/tensor/offload.h"

#include <c10/core/Allocator.h>

#include <cstring>

#include "model/tensor/storage_memory.h"

namespace mortise {

const FileMemory* Offload::find(const at::Tensor& tensor) const {
  const void* const data = tensor.storage().unsafeGetStorageImpl()->data();
  for (const auto& file : files_) {
    if (file->data() == data) return file.get();
  }
  return nullptr;
}

Result<> Offload::take(const at::Tensor& tensor) {
  if (tensor.numel() == 0 || !has_memory(tensor) || find(tensor) != nullptr) return {};
  c10::StorageImpl* const storage = tensor.storage().unsafeGetStorageImpl();
  auto file = std::make_unique<std::shared_ptr<const FileMemory>>(
      std::make_shared<const FileMemory>(TRY(FileMemory::create(folder_, storage->nbytes()))));
  std::byte* const data = (*file)->data();
  std::memcpy(data, storage->data(), storage->nbytes());
  files_.push_back(*file);
  const auto let_go = [](void* held) { delete static_cast<std::shared_ptr<const FileMemory>*>(held); };
  storage->set_data_ptr_noswap(c10::DataPtr(data, file.release(), let_go, c10::Device(c10::DeviceType::CPU)));
  files_.back()->release();
  return {};
}

void Offload::release(const at::Tensor& tensor) const {
  if (const FileMemory* const file = find(tensor)) file->release();
}

void Offload::release_all() const {
  for (const auto& file : files_) file->release();
}

}  // namespace mortise
