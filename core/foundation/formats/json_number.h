// What numbers of JSON fit into. Pure functions.
#pragma once

#include <cstdint>

#include "foundation/formats/json.h"

namespace mortise {

// Is it an integer that int64 holds? get<int64_t>() of a larger one is another number.
[[nodiscard]] inline bool is_i64(const Json& value) {
  return value.is_number_integer() && (!value.is_number_unsigned() || value.get<uint64_t>() <= uint64_t{INT64_MAX});
}

}  // namespace mortise
