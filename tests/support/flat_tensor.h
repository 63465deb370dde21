// FlatTensor: numbers of a test as a borrowed ABI view, placed at a byte offset so that plugins must honour it. In host
// memory, or in memory that the host cannot use, as a tensor on a CUDA device.
#pragma once

#include <cstdint>
#include <vector>

#include "mortise/mortise.h"
#include "support/locked_area.h"

namespace mortise::test {

template <class T>
struct TensorCode;
template <>
struct TensorCode<float> {
  static constexpr uint8_t value = MORTISE_FLOAT;
};
template <>
struct TensorCode<uint8_t> {
  static constexpr uint8_t value = MORTISE_UINT;
};

template <class T>
class FlatTensor {
 public:
  explicit FlatTensor(std::vector<T> values, bool on_device = false)
      : FlatTensor(values, std::vector<int64_t>{static_cast<int64_t>(values.size())}) {
    if (!on_device) return;
    LockedArea& area = LockedArea::instance();
    view_.data = device_ = area.allocate(storage_.size() * sizeof(T));
    view_.device_type = MORTISE_CUDA;
    area.copy(device_, storage_.data(), storage_.size() * sizeof(T));
  }
  ~FlatTensor() {
    if (device_ != nullptr) LockedArea::instance().release(device_);
  }
  FlatTensor(const std::vector<T>& values, std::vector<int64_t> shape)
      : shape_(std::move(shape)), strides_(shape_.size(), 1) {
    storage_.assign(kOffset, T{});
    storage_.insert(storage_.end(), values.begin(), values.end());
    for (size_t i = strides_.size(); i-- > 1;) strides_[i - 1] = strides_[i] * shape_[i];
    view_.data = storage_.data();
    view_.byte_offset = kOffset * sizeof(T);
    view_.device_type = MORTISE_CPU;
    view_.ndim = static_cast<int32_t>(shape_.size());
    view_.dtype_code = TensorCode<T>::value;
    view_.dtype_bits = 8 * sizeof(T);
    view_.dtype_lanes = 1;
    view_.shape = shape_.data();
    view_.strides = strides_.data();
  }
  FlatTensor(const FlatTensor&) = delete;
  FlatTensor& operator=(const FlatTensor&) = delete;

  const mortise_tensor* view() const { return &view_; }
  std::vector<T> values() const {
    std::vector<T> all = storage_;
    if (device_ != nullptr) LockedArea::instance().copy(all.data(), device_, all.size() * sizeof(T));
    return {all.begin() + kOffset, all.end()};
  }

 private:
  static constexpr size_t kOffset = 3;
  std::vector<T> storage_;
  std::vector<int64_t> shape_, strides_;
  mortise_tensor view_{};
  void* device_ = nullptr;
};

}  // namespace mortise::test
