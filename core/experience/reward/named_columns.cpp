#include "experience/reward/named_columns.h"

#include <algorithm>

#include "foundation/base/text.h"

namespace mortise {

namespace {

bool begins_with_word(std::string_view text, std::string_view word) {
  return text.starts_with(word) && (text.size() == word.size() || text[word.size()] == ' ' || text[word.size()] == ',');
}

bool names_column(const ParamInfo& param) {
  return param.type == ParamType::kText &&
         (begins_with_word(param.doc, "data column") || begins_with_word(param.doc, "column"));
}

// As rewards look it up (plugins/shared/columns.h): a value under the whole path as its name comes first.
bool has_value(const Json& columns, std::string_view path) {
  if (const Json* whole = json_find(columns, path); whole != nullptr && !whole->is_null()) return true;
  const Json* value = &columns;
  for (const std::string_view key : split(path, '.')) {
    value = value->is_object() ? json_find(*value, key) : nullptr;
    if (value == nullptr) return false;
  }
  return !value->is_null();
}

// Of all rows, in the order of their first sight.
std::vector<std::string> column_names(const Dataset& data) {
  std::vector<std::string> names;
  for (int64_t row = 0; row < data.size(); ++row) {
    for (const auto& [name, value] : data[row].columns.items()) {
      if (std::ranges::find(names, name) == names.end()) names.push_back(name);
    }
  }
  return names;
}

}  // namespace

std::vector<NamedColumn> named_columns(const PluginInfo& reward, const Json& params) {
  std::vector<NamedColumn> columns;
  for (const ParamInfo& param : reward.params) {
    if (!names_column(param)) continue;
    const Json* given = json_find(params, param.name);
    std::string path = param.default_text.value_or("");
    if (given != nullptr && given->is_string()) path = given->get<std::string>();
    if (!path.empty()) columns.push_back({param.name, std::move(path)});
  }
  return columns;
}

Result<> check_named_column(const NamedColumn& column, const PluginInfo& reward, const Dataset& data,
                            std::string_view rows) {
  for (int64_t row = 0; row < data.size(); ++row) {
    if (has_value(data[row].columns, column.path)) return {};
  }
  const std::vector<std::string> names = column_names(data);
  std::string next = did_you_mean(column.row_key(), names);
  if (next.empty()) next = names.empty() ? "the rows have no columns" : "the rows have " + join(names, ", ");
  next += (next.ends_with('?') ? " Else " : "; ") + std::string("set ") + quote(column.param) +
          " to a column that is there";
  return Error{ErrorKind::kData,
               "the reward " + quote(reward.name) + " reads the data column " + quote(column.path) + " (" +
                   column.param + "), and no row of " + std::string(rows) + " has a value there",
               "", next + ", or take the reward out"};
}

}  // namespace mortise
