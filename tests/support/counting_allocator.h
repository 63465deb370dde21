// Counts the bytes of libtorch's CPU tensors: how many there are, and the most since the last reset. Never destroyed,
// since tensors may outlive anything; one per program. Counts of one thread at a time are exact.
#pragma once

#include <c10/core/Allocator.h>
#include <c10/core/CPUAllocator.h>

#include <atomic>
#include <cstdint>

namespace mortise {

class CountingAllocator final : public c10::Allocator {
 public:
  // Puts itself before libtorch's own allocator, once.
  static CountingAllocator& install() {
    static auto* allocator = new CountingAllocator(c10::GetCPUAllocator());
    return *allocator;
  }

  [[nodiscard]] int64_t bytes() const { return bytes_; }
  [[nodiscard]] int64_t peak() const { return peak_; }
  void reset_peak() { peak_ = bytes_.load(); }

  c10::DataPtr allocate(size_t size) override {
    c10::DataPtr inner = inner_->allocate(size);
    void* data = inner.get();
    const int64_t now = bytes_ += static_cast<int64_t>(size);
    if (now > peak_) peak_ = now;
    return {data, new Block{this, std::move(inner), size}, &release, c10::Device(c10::DeviceType::CPU)};
  }
  [[nodiscard]] c10::DeleterFnPtr raw_deleter() const override { return nullptr; }
  void copy_data(void* to, const void* from, size_t size) const override { default_copy_data(to, from, size); }

 private:
  struct Block {
    CountingAllocator* owner;
    c10::DataPtr data;
    size_t size;
  };
  explicit CountingAllocator(c10::Allocator* inner) : inner_(inner) { c10::SetCPUAllocator(this, 1); }
  static void release(void* context) {
    auto* block = static_cast<Block*>(context);
    block->owner->bytes_ -= static_cast<int64_t>(block->size);
    delete block;
  }

  c10::Allocator* inner_;
  std::atomic<int64_t> bytes_{0}, peak_{0};
};

}  // namespace mortise
