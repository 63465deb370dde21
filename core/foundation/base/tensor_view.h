// TensorView: a named, typed, shaped piece of memory that someone else owns; what formats and checkpoints see of a
// tensor without knowing libtorch. Row-major, contiguous, little-endian. TensorSource: the same where no memory holds
// the whole tensor.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include "foundation/base/result.h"

namespace mortise {

enum class DType : uint8_t { kF64, kF32, kF16, kBF16, kI64, kI32, kI16, kI8, kU64, kU32, kU16, kU8, kBool };

[[nodiscard]] size_t dtype_bytes(DType dtype);
[[nodiscard]] std::string_view dtype_name(DType dtype);  // safetensors' names: "F32", "BF16", "BOOL"
[[nodiscard]] std::optional<DType> parse_dtype(std::string_view name);

// Elements of a shape (1 for a scalar), or nothing where the product does not fit an int64 or a size is negative.
[[nodiscard]] std::optional<int64_t> num_elements(std::span<const int64_t> shape);

// Gives the bytes of a tensor in pieces, such as an optimizer state whose parts lie on several ranks.
// Thread rule: one thread at a time.
class TensorSource {
 public:
  virtual ~TensorSource() = default;
  // The bytes of the tensor from `begin` on, as many as fit into `out`.
  virtual Result<> read(uint64_t begin, std::span<std::byte> out) const = 0;
};

struct TensorView {
  std::string name;
  DType dtype = DType::kF32;
  std::vector<int64_t> shape;
  std::span<const std::byte> bytes;              // borrowed; num_elements * dtype_bytes of them
  std::shared_ptr<const TensorSource> source{};  // instead of `bytes`; only write_safetensors and measures take it

  // The elements as T. Precondition: T has the size and alignment of dtype (safetensors written by us is aligned).
  template <class T>
  [[nodiscard]] std::span<const T> as() const {
    return {reinterpret_cast<const T*>(bytes.data()), bytes.size() / sizeof(T)};
  }
};

// The DType of a C++ element type, for view_of().
template <class T>
constexpr DType dtype_of() {
  if constexpr (std::is_same_v<T, double>)
    return DType::kF64;
  else if constexpr (std::is_same_v<T, float>)
    return DType::kF32;
  else if constexpr (std::is_same_v<T, int64_t>)
    return DType::kI64;
  else if constexpr (std::is_same_v<T, int32_t>)
    return DType::kI32;
  else if constexpr (std::is_same_v<T, int16_t>)
    return DType::kI16;
  else if constexpr (std::is_same_v<T, int8_t>)
    return DType::kI8;
  else if constexpr (std::is_same_v<T, uint64_t>)
    return DType::kU64;
  else if constexpr (std::is_same_v<T, uint32_t>)
    return DType::kU32;
  else if constexpr (std::is_same_v<T, uint16_t>)
    return DType::kU16;
  else if constexpr (std::is_same_v<T, uint8_t>)
    return DType::kU8;
  else
    static_assert(sizeof(T) == 0, "no tensor dtype for this type (bool: store uint8 bytes as kBool)");
}

// A view of `values`; the shape defaults to one axis.
template <class T>
TensorView view_of(std::string name, std::span<const T> values, std::vector<int64_t> shape = {}) {
  if (shape.empty()) shape = {static_cast<int64_t>(values.size())};
  return {std::move(name), dtype_of<T>(), std::move(shape), std::as_bytes(values), nullptr};
}

}  // namespace mortise
