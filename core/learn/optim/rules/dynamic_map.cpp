// Builds the two maps, as bitsandbytes.functional.create_dynamic_map does.
#include "learn/optim/rules/dynamic_map.h"

#include <algorithm>
#include <cmath>
#include <vector>

namespace mortise {

namespace {

// Exponent e of 0..6 is the decade 10^(e-6). It has 2^e values, or twice as many without a sign: the middles of equal
// pieces of [0.1, 1].
DynamicMap make_map(bool is_signed) {
  std::vector<float> values{0.0F, 1.0F};
  for (int exponent = 0; exponent < 7; ++exponent) {
    const int count = (is_signed ? 1 : 2) << exponent;
    const auto scale = std::pow(10.0, exponent - 6);
    const float step = 0.9F / static_cast<float>(count);
    // torch.linspace counts its second half from the end.
    const auto boundary = [&](int i) {
      return i < (count + 1) / 2 ? 0.1F + step * static_cast<float>(i) : 1.0F - step * static_cast<float>(count - i);
    };
    for (int i = 0; i < count; ++i) {
      const float middle = (boundary(i) + boundary(i + 1)) / 2.0F;
      const auto value = static_cast<float>(scale * static_cast<double>(middle));
      values.push_back(value);
      if (is_signed) values.push_back(-value);
    }
  }
  std::sort(values.begin(), values.end());
  DynamicMap map;
  std::copy_n(values.begin(), map.values.size(), map.values.begin());
  for (size_t i = 0; i < map.midpoints.size(); ++i) map.midpoints[i] = (map.values[i] + map.values[i + 1]) / 2.0F;
  return map;
}

}  // namespace

const DynamicMap& signed_map() {
  static const DynamicMap map = make_map(true);
  return map;
}

const DynamicMap& unsigned_map() {
  static const DynamicMap map = make_map(false);
  return map;
}

}  // namespace mortise
