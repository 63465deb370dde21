// Tensors of libtorch in checkpoints: contiguous tensors of float64, float32, bfloat16 or bytes, on the host or a device.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/ops/from_blob.h>

#include <algorithm>
#include <memory>
#include <span>
#include <string_view>

#include "foundation/base/stateful.h"

namespace mortise {

inline DType dtype_of_scalar(at::ScalarType type) {
  switch (type) {
    case at::kDouble:
      return DType::kF64;
    case at::kBFloat16:
      return DType::kBF16;
    case at::kByte:
      return DType::kU8;
    default:
      return DType::kF32;
  }
}

inline DType dtype_of_tensor(const at::Tensor& tensor) { return dtype_of_scalar(tensor.scalar_type()); }

// The bytes of a tensor on a device, which the host gets piece by piece while they are written.
class DeviceTensorSource : public TensorSource {
 public:
  explicit DeviceTensorSource(const at::Tensor& tensor) : flat_(tensor.detach().reshape({-1})) {}
  Result<> read(uint64_t begin, std::span<std::byte> out) const override {
    const auto element = static_cast<uint64_t>(flat_.element_size());
    const at::Tensor piece =
        flat_.narrow(0, static_cast<int64_t>(begin / element), static_cast<int64_t>(out.size() / element)).to(at::kCPU);
    std::copy_n(static_cast<const std::byte*>(piece.const_data_ptr()), out.size(), out.begin());
    return {};
  }

 private:
  at::Tensor flat_;
};

// The numbers of `tensor` from the bytes of a checkpoint.
inline void copy_from_bytes(const at::Tensor& tensor, std::span<const std::byte> bytes) {
  auto* const data = const_cast<std::byte*>(bytes.data());  // only read from
  tensor.copy_(at::from_blob(data, tensor.sizes(), at::TensorOptions().dtype(tensor.scalar_type())));
}

// Borrowed until the snapshot has been written.
inline void put_tensor(StateWriter& writer, std::string_view key, const at::Tensor& tensor) {
  const auto shape = tensor.sizes();
  if (!tensor.is_cpu()) {
    writer.put_source(key, dtype_of_tensor(tensor), {shape.data(), shape.size()},
                      std::make_shared<DeviceTensorSource>(tensor));
    return;
  }
  writer.put_tensor(key, dtype_of_tensor(tensor), {shape.data(), shape.size()},
                    {static_cast<const std::byte*>(tensor.const_data_ptr()), tensor.nbytes()});
}

}  // namespace mortise
