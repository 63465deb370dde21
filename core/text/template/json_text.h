// JSON in and out of the template language: values from parsed JSON, and Python's json.dumps. Pure functions.
#pragma once

#include <optional>
#include <string>

#include "foundation/formats/json.h"
#include "text/template/value.h"

namespace mortise::jinja {

Value from_json(const Json& json);

struct JsonStyle {
  bool ensure_ascii = false;
  bool sort_keys = false;
  std::optional<std::string> indent;  // indent of one level; none: one line
  std::string item_separator = ", ";
  std::string key_separator = ": ";
};

Result<std::string> json_text(const Value& value, const JsonStyle& style);

}  // namespace mortise::jinja
