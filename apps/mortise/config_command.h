// `mortise config` and what it does not know itself: the parameters of plugins, whose tables lie in packs.
#pragma once

#include <map>
#include <span>
#include <string>

#include "config/load.h"
#include "foundation/base/result.h"

namespace mortise {

// The text (JSON where asked for) for a key that is none of the engine's; empty where it is like no plugin's parameter
// either. `config_file`: a run's file, whose plugins and packs are meant; may be empty.
using ParamExplainer = Result<std::string> (*)(const std::string& key, const std::string& config_file, bool json);

// What the plugins of a run make of the keys that are left to them (ShowOptions::remarks); empty where they are not
// found.
using KeyRemarks = std::map<std::string, std::string> (*)(const LoadedConfig& loaded);

int run_config(std::span<const std::string> args, ParamExplainer explain_param, KeyRemarks remarks = nullptr);

}  // namespace mortise
