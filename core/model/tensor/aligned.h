// Float memory on 64-byte lines, and row strides that do not collide in the cache. Thread rule: plain values.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

namespace mortise {

struct FreeFloats {
  void* mapped = nullptr;  // null: from operator new
  size_t mapped_size = 0;
  void operator()(float* p) const;
};

// Zeroed floats. reserve() grows it and forgets the content. From 4 MiB on they are on huge pages if the system has
// them. The writer touches them first.
class FloatBuffer {
 public:
  FloatBuffer() = default;
  explicit FloatBuffer(int64_t size) { reserve(size); }
  void reserve(int64_t size) {
    if (size <= size_) return;
    data_ = allocate(static_cast<size_t>(size) * sizeof(float));
    size_ = size;
  }
  void free() {
    data_.reset();
    size_ = 0;
  }
  [[nodiscard]] float* data() const { return data_.get(); }
  [[nodiscard]] int64_t size() const { return size_; }

 private:
  using Memory = std::unique_ptr<float, FreeFloats>;
  static Memory allocate(size_t bytes);

  Memory data_;
  int64_t size_ = 0;
};

// Room for `columns` rounded up to whole panels, an odd number of cache lines: rows of a power-of-two stride would
// share a few cache sets, and a register tile reads eight of them at once.
constexpr int64_t padded_stride(int64_t columns) { return (((columns + 31) / 32 * 2) | 1) * 16; }

}  // namespace mortise
