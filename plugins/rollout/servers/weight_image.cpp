// See weight_image.h.
#include "weight_image.h"

#include <cstring>
#include <utility>

#include "bfloat16.h"

namespace mortise {

void WeightImage::add(std::string_view name, const std::int64_t* shape, std::int64_t num_dims, const float* data) {
  ImageTensor tensor;
  tensor.name = std::string(name);
  tensor.shape.assign(shape, shape + num_dims);
  std::uint64_t count = 1;
  for (const std::int64_t size : tensor.shape) count *= std::uint64_t(size);
  tensor.num_bytes = count * (bfloat16_ ? sizeof(std::uint16_t) : sizeof(float));
  tensor.data.reset(new std::byte[tensor.num_bytes]);
  if (bfloat16_) {
    for (std::uint64_t i = 0; i < count; ++i) {
      const std::uint16_t rounded = to_bfloat16(data[i]);
      std::memcpy(tensor.data.get() + i * sizeof rounded, &rounded, sizeof rounded);
    }
  } else {
    std::memcpy(tensor.data.get(), data, tensor.num_bytes);
  }
  tensors_.push_back(std::move(tensor));
}

}  // namespace mortise
