// The devices on which a plugin's tensors may lie (extension mortise.device/1). This program's are in host memory.
#pragma once

#include <cstdint>
#include <vector>

#include "foundation/base/result.h"
#include "mortise/pack.h"

namespace mortise {

// MORTISE_CPU alone for a plugin without the table. An error, which says what is wrong with the table, for one that
// breaks rule R46: such a plugin is not used. Asks the pack; throws what it throws.
[[nodiscard]] Result<std::vector<int32_t>> device_types(const mortise_descriptor& descriptor);

}  // namespace mortise
