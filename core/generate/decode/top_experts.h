// The k largest of n probabilities, as torch.topk takes them on the CPU: by the same algorithms of the standard library,
// so that ties go the same way. Thread rule: pure function; `queue` is scratch.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <utility>
#include <vector>

namespace mortise {

// The first k entries of `queue` are the largest, in torch.topk's order (descending; NaN counts as the largest).
inline void take_top(const float* probs, int64_t n, int64_t k, std::vector<std::pair<float, int64_t>>& queue) {
  queue.clear();
  for (int64_t i = 0; i < n; ++i) queue.emplace_back(probs[i], i);
  const auto larger = [](const std::pair<float, int64_t>& a, const std::pair<float, int64_t>& b) {
    return (std::isnan(a.first) && !std::isnan(b.first)) || a.first > b.first;
  };
  if (k * 64 <= n) {
    std::partial_sort(queue.begin(), queue.begin() + k, queue.end(), larger);
    return;
  }
  std::nth_element(queue.begin(), queue.begin() + (k - 1), queue.end(), larger);
  std::sort(queue.begin(), queue.begin() + (k - 1), larger);
}

}  // namespace mortise
