// A text of a JSON object that may not be there.
#pragma once

#include <string>
#include <string_view>

#include "foundation/formats/json.h"

namespace mortise {

// "" where the key is missing or is no text.
[[nodiscard]] inline std::string text_or_empty(const Json& object, std::string_view key) {
  const Json* value = json_find(object, key);
  return value != nullptr && value->is_string() ? value->get<std::string>() : std::string();
}

}  // namespace mortise
