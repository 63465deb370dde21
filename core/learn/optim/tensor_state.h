// Tensors of libtorch in checkpoints: contiguous CPU tensors of float32 or float64.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstring>
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

// Reads into the memory of `tensor`, whose dtype and shape it must have.
inline Result<> get_tensor(StateReader& reader, std::string_view key, const at::Tensor& tensor) {
  const auto shape = tensor.sizes();
  const TensorView view =
      TRY(reader.get_tensor(key, dtype_of_tensor(tensor), std::span<const int64_t>(shape.data(), shape.size())));
  std::memcpy(tensor.mutable_data_ptr(), view.bytes.data(), view.bytes.size());
  return {};
}

}  // namespace mortise
