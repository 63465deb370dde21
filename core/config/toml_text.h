// TOML text of single values and keys, made from JSON: what `config show` and messages print.
//
// Private to this room. Pure functions.
#pragma once

#include <string>
#include <string_view>

#include "foundation/formats/json.h"

namespace mortise {

// A bare key, quoted if it needs quotes.
std::string toml_key(std::string_view key);

// The value on one line (objects as inline tables). Doubles read back as the same bits and stay doubles ("3.0").
// Precondition: no null inside and no non-finite number (the loader refuses both).
std::string toml_value(const Json& value);

}  // namespace mortise
