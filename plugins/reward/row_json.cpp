#include "row_json.h"

#include <nlohmann/json.hpp>

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
  if (!row.messages().empty() && !nlohmann::json::accept(row.messages())) return "the messages are not valid JSON";
  for (const std::string_view name : row.column_names()) {
    const auto json = row.json(name);
    if (json && !nlohmann::json::accept(*json)) return "column '" + std::string(name) + "' is not valid JSON";
  }
  return "";
}

}  // namespace mortise
