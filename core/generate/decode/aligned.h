// Float memory on 64-byte lines, and row strides that do not collide in the cache. Thread rule: plain values.
#pragma once

#include <cstdint>
#include <cstring>
#include <memory>
#include <new>

namespace mortise {

// Zeroed floats; grows by reserve(), which forgets the content.
class FloatBuffer {
 public:
  FloatBuffer() = default;
  explicit FloatBuffer(int64_t size) { reserve(size); }
  void reserve(int64_t size) {
    if (size <= size_) return;
    data_.reset(static_cast<float*>(::operator new (static_cast<size_t>(size) * sizeof(float), std::align_val_t{64})));
    std::memset(data_.get(), 0, static_cast<size_t>(size) * sizeof(float));
    size_ = size;
  }
  void free() {
    data_.reset();
    size_ = 0;
  }
  [[nodiscard]] float* data() const { return data_.get(); }
  [[nodiscard]] int64_t size() const { return size_; }

 private:
  struct Free {
    void operator()(float* p) const { ::operator delete (p, std::align_val_t{64}); }
  };
  std::unique_ptr<float, Free> data_;
  int64_t size_ = 0;
};

// Room for `columns` rounded up to whole panels, an odd number of cache lines: rows of a power-of-two stride would
// share a few cache sets, and a register tile reads eight of them at once.
constexpr int64_t padded_stride(int64_t columns) { return (((columns + 31) / 32 * 2) | 1) * 16; }

}  // namespace mortise
