// What rules that work element by element share: a loop whose numbers depend neither on threads nor on where a
// parameter was cut. The room is compiled without fused multiply-adds, so every element has the same rounding.
// Private to this folder.
#pragma once

#include <ATen/core/Tensor.h>

#include <algorithm>
#include <cstdint>

#include "model/tensor/compute_team.h"

namespace mortise {

// Numbers that a thread takes at a time. A multiple of the blocks of the 8-bit state.
inline constexpr int64_t kElementGrain = int64_t{1} << 14;

// body(float{}) or body(double{}) by the tensor's dtype.
template <class Body>
void with_real(const at::Tensor& tensor, const Body& body) {
  if (tensor.scalar_type() == at::kDouble) {
    body(double{});
  } else {
    body(float{});
  }
}

// body(begin, end) over [0, size), cut at multiples of kElementGrain.
template <class Body>
void for_elements(int64_t size, const Body& body) {
  const int64_t pieces = (size + kElementGrain - 1) / kElementGrain;
  compute_ranges(pieces, 1, [&](int64_t first, int64_t last) {
    body(first * kElementGrain, std::min(size, last * kElementGrain));
  });
}

template <class T>
T* numbers_of(const at::Tensor& tensor) {
  return static_cast<T*>(tensor.mutable_data_ptr());
}

}  // namespace mortise
