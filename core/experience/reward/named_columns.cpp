// Finds the parameters that name data columns, and checks that some row has a value there.
#include "experience/reward/named_columns.h"

#include <fmt/core.h>
#include <algorithm>

#include "foundation/base/text.h"

namespace mortise {

namespace {

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

// All columns, in the order of their first appearance.
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
    if (param.role != ParamRole::kColumn) continue;
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
  next +=
      fmt::format("{}set {} to a column that exists", next.ends_with('?') ? " Otherwise " : "; ", quote(column.param));
  return Error{ErrorKind::kData,
               fmt::format("the reward {} reads the data column {} ({}), but no row of {} has a value there",
                           quote(reward.name), quote(column.path), column.param, rows),
               "", next + ", or remove the reward"};
}

}  // namespace mortise
