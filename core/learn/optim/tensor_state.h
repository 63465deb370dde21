// Tensors of libtorch in checkpoints: contiguous tensors of float64, float32, bfloat16 or bytes, on the host or a device.
#pragma once

#include <ATen/core/Tensor.h>

#include <algorithm>
#include <memory>
#include <span>
#include <string_view>

#include "foundation/base/stateful.h"
#include "foundation/base/tensor_pieces.h"
#include "model/tensor/offload.h"

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

// A tensor as it is saved, without a name: its memory, or for a device or a file (`is_in_file`) what reads it piece by
// piece. Borrowed.
inline TensorView view_for_save(const at::Tensor& tensor, bool is_in_file) {
  TensorView view{"", dtype_of_tensor(tensor), tensor.sizes().vec(), {}, nullptr};
  if (tensor.numel() == 0) return view;
  if (is_in_file)
    view.source = Offload::source(tensor);
  else if (!tensor.is_cpu())
    view.source = std::make_shared<DeviceTensorSource>(tensor);
  else
    view.bytes = {static_cast<const std::byte*>(tensor.const_data_ptr()), tensor.nbytes()};
  return view;
}

// A tensor of which this process has all. Borrowed until the snapshot has been written. `is_alone` false: every rank has
// the same bits, and any of them may write it.
inline void put_whole(StateWriter& writer, std::string_view key, const TensorView& view, bool is_alone) {
  if (!is_alone)
    writer.put_source(key, view.dtype, view.shape, std::make_shared<RankedTensor>(view));
  else if (view.source != nullptr)
    writer.put_source(key, view.dtype, view.shape, view.source);
  else
    writer.put_tensor(key, view.dtype, view.shape, view.bytes);
}

}  // namespace mortise
