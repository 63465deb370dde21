// Checks before the first step that the data columns which the config names for rewards are in the rows. A reward whose
// column is in no row would never apply, and the run would learn nothing from it.
//
// Parameters with the role `column` name columns. The value is a column, or a dotted path into a JSON one
// ("reward_model.ground_truth"). Cost: up to the first row that has a value. Thread rule: free functions without state.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "experience/data/dataset.h"
#include "foundation/base/result.h"
#include "foundation/formats/json.h"
#include "plugin/pack/pack_info.h"

namespace mortise {

struct NamedColumn {
  std::string param;  // the reward's parameter
  std::string path;   // what it is set to

  // The key of a data row that the path begins with.
  [[nodiscard]] std::string row_key() const { return path.substr(0, path.find('.')); }
};

// Those of a reward that is given these parameters. Defaults count; empty texts name nothing.
[[nodiscard]] std::vector<NamedColumn> named_columns(const PluginInfo& reward, const Json& params);

// An error if no row has a value in the column. `rows`: the config key of the data.
Result<> check_named_column(const NamedColumn& column, const PluginInfo& reward, const Dataset& data,
                            std::string_view rows);

}  // namespace mortise
