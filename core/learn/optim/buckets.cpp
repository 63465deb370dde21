// See buckets.h.
#include "learn/optim/buckets.h"

#include <ATen/core/Tensor.h>

#include <algorithm>
#include <numeric>

#include "model/weights/names.h"

namespace mortise {

bool is_complete_before_backward(const OptimizedParameter& parameter) { return parameter.name == kHeadName; }

std::vector<ParameterRange> backward_groups(std::span<const OptimizedParameter> parameters, int64_t most_bytes) {
  const auto turn = [&](size_t i) {
    if (is_complete_before_backward(parameters[i])) return 0;
    return layer_of(parameters[i].name) ? 1 : 2;
  };
  std::vector<size_t> order(parameters.size());
  std::iota(order.rbegin(), order.rend(), size_t{0});
  std::ranges::stable_sort(order, {}, turn);

  std::vector<ParameterRange> groups;
  int64_t bytes = 0;
  for (const size_t i : order) {
    const at::Tensor& tensor = parameters[i].tensor;
    const auto size = static_cast<int64_t>(tensor.nbytes());
    const bool joins = !groups.empty() && groups.back().begin == i + 1 && turn(i) == turn(i + 1) &&
                       bytes + size <= most_bytes && tensor.scalar_type() == parameters[i + 1].tensor.scalar_type();
    if (!joins) {
      groups.push_back({i, i + 1});
      bytes = 0;
    }
    groups.back().begin = i;
    bytes += size;
  }
  return groups;
}

}  // namespace mortise
