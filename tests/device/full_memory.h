// A device with little free memory, while an object of this class lives. On a GPU, tensors take what is free. The CPU's
// memory cannot be filled, so its tensors come from an allocator with a limit, which fails as that of a GPU does.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <c10/core/CPUAllocator.h>
#include <c10/util/Exception.h>

#include <atomic>
#include <limits>
#include <memory>
#include <vector>

#include "device/device_under_test.h"

namespace mortise {

// Thread rule: any; the limit is exact for one thread at a time.
class LimitedMemory final : public c10::Allocator {
 public:
  static LimitedMemory& install() {
    static auto* const allocator = new LimitedMemory(c10::GetCPUAllocator());  // tensors may outlive anything
    return *allocator;
  }
  // Tensors that are made from now on may have so many bytes together.
  void limit(int64_t bytes) { left_ = bytes; }
  void lift() { left_ = kNone; }

  c10::DataPtr allocate(size_t size) override {
    const auto wanted = static_cast<int64_t>(size);
    TORCH_CHECK_WITH(OutOfMemoryError, wanted <= left_, "the test left only ", left_, " bytes of memory");
    if (left_ != kNone) left_ -= wanted;
    c10::DataPtr inner = inner_->allocate(size);
    void* const data = inner.get();
    return {data, new Block{this, std::move(inner), wanted}, &release, c10::Device(c10::DeviceType::CPU)};
  }
  [[nodiscard]] c10::DeleterFnPtr raw_deleter() const override { return nullptr; }
  void copy_data(void* to, const void* from, size_t size) const override { default_copy_data(to, from, size); }

 private:
  static constexpr int64_t kNone = std::numeric_limits<int64_t>::max();
  struct Block {
    LimitedMemory* owner;
    c10::DataPtr data;
    int64_t size;
  };
  explicit LimitedMemory(c10::Allocator* inner) : inner_(inner) { c10::SetCPUAllocator(this, 1); }
  static void release(void* context) {
    const std::unique_ptr<Block> block(static_cast<Block*>(context));
    if (block->owner->left_ != kNone) block->owner->left_ += block->size;
  }

  c10::Allocator* inner_;
  std::atomic<int64_t> left_{kNone};
};

class FullMemory {
 public:
  explicit FullMemory(int64_t bytes_left) {
    if (device_under_test.device.is_cpu()) {
      LimitedMemory::install().limit(bytes_left);
      return;
    }
    const at::TensorOptions bytes = at::TensorOptions().device(device_under_test.device).dtype(at::kByte);
    const at::Tensor left = at::empty({bytes_left}, bytes);  // free again, for smaller tensors, when this one goes
    for (int64_t size = int64_t{4} << 30; size >= 1 << 20; size /= 2) {
      while (take(size, bytes)) {
      }
    }
  }
  FullMemory(const FullMemory&) = delete;
  FullMemory& operator=(const FullMemory&) = delete;
  ~FullMemory() {
    if (device_under_test.device.is_cpu()) LimitedMemory::install().lift();
  }

 private:
  bool take(int64_t size, const at::TensorOptions& bytes) {
    try {
      taken_.push_back(at::empty({size}, bytes));
      return true;
    } catch (const c10::OutOfMemoryError&) {
      return false;
    }
  }
  std::vector<at::Tensor> taken_;
};

}  // namespace mortise
