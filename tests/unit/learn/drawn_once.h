// Large random tensors that many ranks of a test use: drawing millions of numbers takes longer than the updates that use them.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <map>
#include <mutex>
#include <tuple>
#include <vector>

namespace mortise::test {

// A copy of what `draw` gives for this shape, seed and type. The first call of all threads draws it.
template <class Draw>
at::Tensor drawn_once(const std::vector<int64_t>& shape, uint64_t seed, at::ScalarType type, const Draw& draw) {
  static std::mutex mutex;
  static std::map<std::tuple<std::vector<int64_t>, uint64_t, at::ScalarType>, at::Tensor> drawn;
  const std::lock_guard lock(mutex);
  at::Tensor& tensor = drawn[{shape, seed, type}];
  if (!tensor.defined()) tensor = draw();
  return tensor.clone();
}

}  // namespace mortise::test
