// The 8-bit number format of Dettmers (arXiv:1511.04561, arXiv:2110.02861): 256 values in [-1, 1] (or [0, 1]) with an
// exponent to the base 10 and a fraction that shrinks as the exponent grows. A block of 256 numbers is stored as the
// largest absolute value and one byte for each number. Private to this folder. Pure functions.
#pragma once

#include <array>
#include <cstdint>

namespace mortise {

inline constexpr int64_t kQuantizedBlock = 256;

struct DynamicMap {
  std::array<float, 256> values{};     // ascending
  std::array<float, 255> midpoints{};  // between neighbours

  // The nearest value's index. `x` is in [-1, 1]; NaN gives the last one.
  [[nodiscard]] uint8_t nearest(float x) const {
    uint32_t at = 0;
    for (uint32_t half = 128; half > 0; half /= 2) {
      if (!(x <= midpoints[at + half - 1])) at += half;
    }
    return static_cast<uint8_t>(at);
  }
};

const DynamicMap& signed_map();
const DynamicMap& unsigned_map();

}  // namespace mortise
