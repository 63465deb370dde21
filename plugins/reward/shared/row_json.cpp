// Writes texts, numbers, ids and columns of a row as JSON.
#include "row_json.h"

#include <nlohmann/json.hpp>

#include "parse/json.h"

namespace mortise {

std::string json_text(std::string_view text) {
  return nlohmann::json(text).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

std::string json_cell(const Row& row, std::string_view column) {
  const auto type = row.type(column);
  if (!type) return "null";
  if (*type == MORTISE_COLUMN_JSON) return std::string(row.json(column).value_or("null"));
  if (*type == MORTISE_COLUMN_F64) return nlohmann::json(row.number(column).value_or(0)).dump();  // null: not finite
  const std::string_view text = row.text(column).value_or("");
  return *type == MORTISE_COLUMN_TEXT ? json_text(text) : std::string(text);
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
  const auto refused = [](const std::string& what, const parse::JsonFault& fault) {
    return what + " not valid JSON: " + fault.to_string();
  };
  if (!row.messages().empty())
    if (const auto fault = parse::check_json(row.messages())) return refused("the messages are", *fault);
  for (const std::string_view name : row.column_names()) {
    const auto json = row.json(name);
    if (!json) continue;
    if (const auto fault = parse::check_json(*json)) return refused("column '" + std::string(name) + "' is", *fault);
  }
  return "";
}

}  // namespace mortise
