// Finds the entropy quantile of an update, and masks the tokens below it.
#include "learn/objective/entropy_mask.h"

#include <algorithm>
#include <cmath>
#include <vector>

namespace mortise {

void entropy_mask(std::span<const float> entropy, std::span<const uint8_t> mask, double share,
                  std::span<uint8_t> keep) {
  std::vector<float> values;
  for (size_t t = 0; t < entropy.size(); ++t) {
    if (mask[t] != 0 && !std::isnan(entropy[t])) values.push_back(entropy[t]);  // NaN has no place in an order
  }
  double threshold = 0.0;
  if (!values.empty()) {
    const double place = (1.0 - share) * static_cast<double>(values.size() - 1);
    const auto below = values.begin() + static_cast<int64_t>(place);
    std::nth_element(values.begin(), below, values.end());
    threshold = static_cast<double>(*below);
    if (below + 1 != values.end()) {
      const auto above = static_cast<double>(*std::min_element(below + 1, values.end()));
      threshold += (place - static_cast<double>(below - values.begin())) * (above - threshold);
    }
  }
  for (size_t t = 0; t < keep.size(); ++t)
    keep[t] = mask[t] != 0 && !(static_cast<double>(entropy[t]) < threshold) ? 1 : 0;
}

}  // namespace mortise
