// `mortise config` and what it does not know itself: the parameters of plugins, whose tables lie in packs.
#pragma once

#include <span>
#include <string>

#include "foundation/base/result.h"

namespace mortise {

// The text (JSON where asked for) for a key that is none of the engine's; empty where it is like no plugin's parameter
// either. `config_file`: a run's file, whose plugins and packs are meant; may be empty.
using ParamExplainer = Result<std::string> (*)(const std::string& key, const std::string& config_file, bool json);

int run_config(std::span<const std::string> args, ParamExplainer explain_param);

}  // namespace mortise
