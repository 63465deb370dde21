// The outputs of a call, and which of their cells count. The rows lie as foundation/batch/layout.h says.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>

#include "foundation/batch/layout.h"

namespace mortise {

// The cells of an output that count: those whose mask is not 0, and where there are weights, their weight neither.
struct CountedCells {
  std::span<const uint8_t> mask;
  std::span<const float> weight{};  // empty: only the mask
};
struct NamedOutput {
  std::string_view name;
  std::span<float> values;  // as long as the mask, or empty if not requested
};

}  // namespace mortise
