// Values of data columns by a dotted path: "answer", or "reward_model.ground_truth" into a JSON column.
#pragma once

#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>

#include <mortise/cpp/reward.hpp>

#include "parse/json.h"

namespace mortise {

// The value that `path` names in this row as JSON; nothing if it is absent or null. A column whose name is the whole
// path comes first. A number without a fraction is an integer, so that its text does not depend on the other rows of
// its column. Throws Failure for a JSON column that does not parse.
inline std::optional<nlohmann::json> find_value(const Row& row, std::string_view path) {
  std::string_view column = path, rest;
  auto type = row.type(path);
  if (!type) {
    const std::size_t dot = path.find('.');
    if (dot == std::string_view::npos) return {};
    column = path.substr(0, dot);
    rest = path.substr(dot + 1);
    type = row.type(column);
    if (!type) return {};
  }
  nlohmann::json value;
  if (*type == MORTISE_COLUMN_JSON) {
    auto parsed = parse::parse_json(row.json(column).value_or("null"));
    if (!parsed) {
      fail(MORTISE_INVALID_ARGUMENT,
           "column '" + std::string(column) + "' is not valid JSON: " + parsed.fault().to_string());
    }
    value = *std::move(parsed);
  } else if (*type == MORTISE_COLUMN_TEXT) {
    value = std::string(row.text(column).value_or(""));
  } else if (const auto integer = row.integer(column)) {
    value = *integer;
  } else if (const auto number = row.number(column)) {
    value = *number;
  }
  while (!rest.empty()) {
    const std::string key(rest.substr(0, rest.find('.')));
    rest.remove_prefix(std::min(rest.size(), key.size() + 1));
    if (!value.is_object() || !value.contains(key)) return {};
    nlohmann::json inner = value[key];
    value = std::move(inner);
  }
  if (value.is_null()) return {};
  return value;
}

// The right answer of a row: at `path`, or, if that is empty, at the usual places of data sets.
inline std::optional<nlohmann::json> find_truth(const Row& row, const std::string& path) {
  if (!path.empty()) return find_value(row, path);
  for (const char* usual : {"reward_model.ground_truth", "ground_truth", "answer"}) {
    if (auto found = find_value(row, usual)) return found;
  }
  return {};
}

// A JSON value as the text that a person would compare with: strings without quotes, the rest as JSON.
inline std::string as_text(const nlohmann::json& value) {
  return value.is_string() ? value.get<std::string>() : value.dump();
}

}  // namespace mortise
