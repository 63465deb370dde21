// Tensors of libtorch in checkpoints: contiguous CPU tensors of float32 or float64.
#pragma once

#include <ATen/core/Tensor.h>

#include <span>
#include <string_view>

#include "foundation/base/stateful.h"

namespace mortise {

inline DType dtype_of_tensor(const at::Tensor& tensor) {
  return tensor.scalar_type() == at::kDouble ? DType::kF64 : DType::kF32;
}

// Borrowed until the snapshot has been written.
inline void put_tensor(StateWriter& writer, std::string_view key, const at::Tensor& tensor) {
  const auto shape = tensor.sizes();
  writer.put_tensor(key, dtype_of_tensor(tensor), {shape.data(), shape.size()},
                    {static_cast<const std::byte*>(tensor.const_data_ptr()), tensor.nbytes()});
}

}  // namespace mortise
