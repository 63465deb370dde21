#include "row_json.h"

#include <nlohmann/json.hpp>

namespace mortise {

std::string json_text(std::string_view text) {
  return nlohmann::json(text).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

std::string json_cell(const Row& row, std::string_view column) {
  if (const auto text = row.text(column)) return json_text(*text);
  if (const auto json = row.json(column)) return std::string(*json);
  if (const auto integer = row.integer(column)) return std::to_string(*integer);
  if (const auto number = row.number(column)) return nlohmann::json(*number).dump();  // null where it is not finite
  return "null";
}

std::string json_ids(Span<const std::int64_t> values) {
  std::string out = "[";
  for (const std::int64_t id : values) {
    if (out.size() > 1) out += ',';
    out += std::to_string(id);
  }
  return out + ']';
}

std::string unreadable(const Row& row) {
  if (!row.messages().empty() && !nlohmann::json::accept(row.messages())) return "the messages are not valid JSON";
  for (const std::string_view name : row.column_names()) {
    const auto json = row.json(name);
    if (json && !nlohmann::json::accept(*json)) return "column '" + std::string(name) + "' is not valid JSON";
  }
  return "";
}

}  // namespace mortise
