#include <algorithm>
#include <cstdint>

#include "foundation/formats/json.h"
#include "plugin/host/kinds/reward.h"

namespace mortise {
namespace {

bool has_value(const Json* value) { return value != nullptr && !value->is_null(); }

bool fits_i64(const Json& value) {
  return value.is_number_integer() && !(value.is_number_unsigned() && value.get<uint64_t>() > INT64_MAX);
}

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

// JSON where they differ.
ColumnType DataColumn::narrowest(std::span<const Json* const> values) {
  bool text = true, integer = true, number = true;
  for (const Json* value : values) {
    if (!has_value(value)) continue;
    text = text && value->is_string();
    integer = integer && fits_i64(*value);
    number = number && value->is_number();
  }
  if (integer && std::any_of(values.begin(), values.end(), has_value)) return ColumnType::kI64;
  if (text) return ColumnType::kText;
  return number ? ColumnType::kF64 : ColumnType::kJson;
}

DataColumn DataColumn::from_json(std::string name, std::span<const Json* const> values) {
  return from_json(std::move(name), narrowest(values), values);
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
        column.text.append(valid ? value->get_ref<const std::string&>() : std::string());
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
    const char* const type = column.type == ColumnType::kText  ? "text"
                             : column.type == ColumnType::kI64 ? "integers"
                             : column.type == ColumnType::kF64 ? "numbers"
                                                               : "JSON";
    out += (out.empty() ? "" : ", ") + column.name + " (" + type + ")";
  }
  return out.empty() ? "none" : out;
}

}  // namespace mortise
