// Floats as bytes for the other ranks, bit by bit.
#pragma once

#include <cstring>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace mortise {

inline std::string float_bytes(std::span<const float> values) {
  return {reinterpret_cast<const char*>(values.data()), values.size_bytes()};
}

inline std::vector<float> floats_of_bytes(std::string_view bytes) {
  std::vector<float> values(bytes.size() / sizeof(float));
  if (!values.empty()) std::memcpy(values.data(), bytes.data(), values.size() * sizeof(float));
  return values;
}

}  // namespace mortise
