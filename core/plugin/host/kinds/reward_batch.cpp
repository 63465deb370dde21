// The columns of a RewardBatch: appends rows, and decides and checks types.
#include <fmt/core.h>

#include <cstdint>

#include "foundation/formats/json.h"
#include "plugin/host/kinds/reward.h"

namespace mortise {
namespace {

bool has_value(const Json* value) { return value != nullptr && !value->is_null(); }

}  // namespace

void TextColumn::append(std::string_view text) {
  bytes.append(text);
  offsets.push_back(bytes.size());
}

std::string_view TextColumn::row(size_t i) const {
  return std::string_view(bytes).substr(offsets[i], offsets[i + 1] - offsets[i]);
}

void IdColumn::append(std::span<const int64_t> row_ids) {
  ids.insert(ids.end(), row_ids.begin(), row_ids.end());
  offsets.push_back(ids.size());
}

namespace {

constexpr std::pair<ColumnType, std::string_view> kTypeNames[] = {{ColumnType::kText, "text"},
                                                                  {ColumnType::kI64, "integer"},
                                                                  {ColumnType::kF64, "number"},
                                                                  {ColumnType::kJson, "json"}};

}  // namespace

std::string_view column_type_name(ColumnType type) {
  for (const auto& [known, name] : kTypeNames) {
    if (known == type) return name;
  }
  return "";
}

std::optional<ColumnType> parse_column_type(std::string_view name) {
  for (const auto& [type, known] : kTypeNames) {
    if (known == name) return type;
  }
  return std::nullopt;
}

DataColumn DataColumn::from_json(std::string name, ColumnType type, std::span<const Json* const> values) {
  DataColumn column;
  column.name = std::move(name);
  column.type = type;
  column.valid.reserve(values.size());
  for (const Json* value : values) {
    const bool valid = has_value(value);
    column.valid.push_back(valid ? 1 : 0);
    switch (column.type) {
      case ColumnType::kText:
        column.text.append(!valid ? "" : value->is_string() ? value->get<std::string>() : dump_json(*value));
        break;
      case ColumnType::kJson:
        column.text.append(valid ? dump_json(*value) : "null");
        break;
      case ColumnType::kI64:
        column.i64.push_back(valid ? value->get<int64_t>() : 0);
        break;
      case ColumnType::kF64:
        column.f64.push_back(valid ? value->get<double>() : 0.0);
        break;
    }
  }
  return column;
}

std::string columns_phrase(std::span<const DataColumn> columns) {
  std::string out;
  for (const DataColumn& column : columns) {
    out += fmt::format("{}{} ({})", out.empty() ? "" : ", ", column.name, column_type_name(column.type));
  }
  return out.empty() ? "none" : out;
}

}  // namespace mortise
