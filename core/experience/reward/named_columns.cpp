// Finds the parameters that name data columns, and checks that some row has a value there.
#include "experience/reward/named_columns.h"

#include <fmt/core.h>
#include <algorithm>

#include "foundation/base/text.h"

namespace mortise {

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
  if (data.has_value(column.path)) return {};
  const std::vector<std::string> names = data.column_names();
  if (std::ranges::find(names, column.row_key()) != names.end()) {
    return Error{ErrorKind::kData,
                 fmt::format("the reward {} reads the data column {} ({}), but all its values in {} are null",
                             quote(reward.name), quote(column.path), column.param, rows),
                 "", fmt::format("set {} to a column with values, or remove the reward", quote(column.param))};
  }
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
