// See offload.h.
#include "model/tensor/offload.h"

#include <ATen/ops/empty.h>
#include <c10/core/Allocator.h>
#include <c10/util/Exception.h>

#include <cstdint>
#include <cstring>

#include "model/tensor/storage_memory.h"

namespace mortise {

namespace {

constexpr size_t kPage = 4096;
constexpr size_t kSharedFile = size_t{64} << 20;  // larger tensors have files of their own

size_t whole_pages(size_t num_bytes) { return (num_bytes + kPage - 1) / kPage * kPage; }

void use_memory(const c10::Storage& storage, std::shared_ptr<std::byte> numbers) {
  std::byte* const data = numbers.get();
  const auto let_go = [](void* held) { delete static_cast<std::shared_ptr<std::byte>*>(held); };
  storage.unsafeGetStorageImpl()->set_data_ptr_noswap(c10::DataPtr(
      data, new std::shared_ptr<std::byte>(std::move(numbers)), let_go, c10::Device(c10::DeviceType::CPU)));
}

class OffloadedSource : public TensorSource {
 public:
  explicit OffloadedSource(at::Tensor tensor) : tensor_(std::move(tensor)) {}

  Result<> read(uint64_t begin, std::span<std::byte> out) const override {
    auto* const data = static_cast<std::byte*>(tensor_.data_ptr()) + begin;
    std::memcpy(out.data(), data, out.size());
    // The pages that end in this piece. The first one may also hold the end of another tensor, which stays in the file.
    std::byte* const first = data - reinterpret_cast<uintptr_t>(data) % kPage;
    std::byte* const last = data + out.size() - reinterpret_cast<uintptr_t>(data + out.size()) % kPage;
    if (last > first) FileMemory::release({first, last});
    return {};
  }

 private:
  at::Tensor tensor_;
};

}  // namespace

Result<std::shared_ptr<std::byte>> Offload::make_room(size_t num_bytes) {
  const size_t size = whole_pages(num_bytes);
  const bool shares = size < kSharedFile;
  if (!shares || open_ == nullptr || used_ + size > open_->size()) {
    auto file = std::make_shared<FileMemory>(TRY(FileMemory::create(*folder_, shares ? kSharedFile : size)));
    files_.push_back(file);
    if (!shares) {
      bytes_of_[file->data()] = size;
      return std::shared_ptr<std::byte>(file, file->data());
    }
    open_ = std::move(file);
    used_ = 0;
  }
  std::byte* const data = open_->data() + used_;
  used_ += size;
  bytes_of_[data] = size;
  return std::shared_ptr<std::byte>(open_, data);
}

Result<> Offload::take(const at::Tensor& tensor) {
  if (tensor.numel() == 0 || !has_memory(tensor)) return {};
  if (!tensor.is_cpu()) return take_from_device(tensor);
  if (!folder_) return {};
  c10::StorageImpl* const storage = tensor.storage().unsafeGetStorageImpl();
  if (bytes_of_.contains(storage->data())) return {};
  std::shared_ptr<std::byte> room = TRY(make_room(storage->nbytes()));
  std::memcpy(room.get(), storage->data(), storage->nbytes());
  use_memory(tensor.storage(), std::move(room));
  release(tensor);
  return {};
}

Result<> Offload::take_from_device(const at::Tensor& tensor) {
  const at::Tensor numbers = tensor.detach();
  TORCH_CHECK(numbers.is_contiguous() && numbers.storage().nbytes() == numbers.nbytes(),
              "a matrix that goes to a file is a view of other numbers");
  const at::TensorOptions there = numbers.options().device(at::kCPU);
  const at::Tensor in_file = folder_ ? TRY(zeros(numbers.sizes(), there)) : at::empty(numbers.sizes(), there);
  in_file.copy_(numbers);
  release(in_file);
  free_memory(numbers.storage());
  device_numbers_[numbers.storage().unsafeGetStorageImpl()] = {numbers, in_file};
  return {};
}

Result<at::Tensor> Offload::zeros(at::IntArrayRef sizes, const at::TensorOptions& options) {
  at::Tensor tensor = at::empty(sizes, options);  // memory that is never touched takes none
  if (tensor.numel() == 0) return tensor;
  use_memory(tensor.storage(), TRY(make_room(tensor.storage().nbytes())));
  return tensor;
}

void Offload::release(const at::Tensor& tensor) const {
  auto* const data = static_cast<std::byte*>(tensor.storage().unsafeGetStorageImpl()->mutable_data());
  if (const auto found = bytes_of_.find(data); found != bytes_of_.end())
    FileMemory::release(std::span(data, found->second));
}

// A run has one device.
StagedCopies& Offload::copies_with(const at::Tensor& on_device) const {
  if (copies_ == nullptr) copies_ = std::make_unique<StagedCopies>(copy_stream(on_device.device()));
  return *copies_;
}

void Offload::send(const at::Tensor& from_file, const at::Tensor& to_device) const {
  copies_with(to_device).send(from_file, to_device);
  release(from_file);
}

void Offload::receive(const at::Tensor& from_device, const at::Tensor& to_file) const {
  copies_with(from_device).receive(from_device, to_file, [this, to_file] { release(to_file); });
}

void Offload::finish() const {
  if (copies_ != nullptr) copies_->finish();
}

at::Tensor Offload::numbers_in_file(const at::Tensor& tensor) const {
  if (tensor.is_cpu() || has_memory(tensor)) return {};
  const auto found = device_numbers_.find(tensor.storage().unsafeGetStorageImpl());
  if (found == device_numbers_.end()) return {};
  const at::Tensor all = found->second.in_file.view({-1});
  return all.narrow(0, tensor.storage_offset(), tensor.numel()).view(tensor.sizes());
}

at::Tensor Offload::on_device(const at::Tensor& tensor) const {
  const at::Tensor in_file = numbers_in_file(tensor);
  if (!in_file.defined()) return tensor;
  const at::Tensor there = at::empty(tensor.sizes(), tensor.options().requires_grad(false));
  send(in_file, there);
  return there;
}

void Offload::put_back(const at::Tensor& tensor, const at::Tensor& on_device) const {
  if (const at::Tensor in_file = numbers_in_file(tensor); in_file.defined()) receive(on_device, in_file);
}

void Offload::fetch() {
  TORCH_CHECK(!folder_, "numbers in files go to the device one by one");
  for (const auto& [storage, numbers] : device_numbers_) {
    if (has_memory(numbers.tensor)) continue;
    allocate_memory(numbers.tensor.storage());
    send(numbers.in_file, numbers.tensor);
  }
}

void Offload::rest() {
  for (const auto& [storage, numbers] : device_numbers_) {
    if (!has_memory(numbers.tensor)) continue;
    receive(numbers.tensor, numbers.in_file);
    free_memory(numbers.tensor.storage());
  }
  finish();
}

bool Offload::holds(const at::Tensor& tensor) const {
  return has_memory(tensor) && bytes_of_.contains(tensor.storage().unsafeGetStorageImpl()->data());
}

void Offload::release_all() const {
  for (const auto& file : files_) FileMemory::release({file->data(), file->size()});
}

std::shared_ptr<const TensorSource> Offload::source(const at::Tensor& tensor) {
  return std::make_shared<OffloadedSource>(tensor);
}

}  // namespace mortise
