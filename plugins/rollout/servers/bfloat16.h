// Rounds to bfloat16, to the nearest and ties to even, as torch does.
#pragma once

#include <cstdint>
#include <cstring>

namespace mortise {

inline std::uint16_t to_bfloat16(float value) {
  std::uint32_t bits = 0;
  std::memcpy(&bits, &value, sizeof bits);
  if ((bits & 0x7FFFFFFFU) > 0x7F800000U) return std::uint16_t((bits >> 16) | 0x40U);  // NaN stays NaN
  return std::uint16_t((bits + 0x7FFFU + ((bits >> 16) & 1U)) >> 16);
}

}  // namespace mortise
