// Tensors of libtorch in checkpoints: contiguous CPU tensors of float64, float32, bfloat16 or bytes.
#pragma once

#include <ATen/core/Tensor.h>

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

// Borrowed until the snapshot has been written.
inline void put_tensor(StateWriter& writer, std::string_view key, const at::Tensor& tensor) {
  const auto shape = tensor.sizes();
  writer.put_tensor(key, dtype_of_tensor(tensor), {shape.data(), shape.size()},
                    {static_cast<const std::byte*>(tensor.const_data_ptr()), tensor.nbytes()});
}

}  // namespace mortise
