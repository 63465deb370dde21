// `mortise config` for keys that the engine does not know: the parameters of plugins, whose tables are in packs.
#pragma once

#include <map>
#include <span>
#include <string>

#include "config/load.h"
#include "foundation/base/result.h"

namespace mortise {

// The text (or JSON) for a key that is not one of the engine's. Empty if no plugin's parameter is similar either.
// `config_file`: the file of a run with its plugins and packs; may be empty.
using ParamExplainer = Result<std::string> (*)(const std::string& key, const std::string& config_file, bool json);

// The values that the plugins of a run choose for keys left to them (ShowOptions::remarks). Empty if the plugins are
// not found.
using KeyRemarks = std::map<std::string, std::string> (*)(const LoadedConfig& loaded);

int run_config(std::span<const std::string> args, ParamExplainer explain_param, KeyRemarks remarks = nullptr);

}  // namespace mortise
