// check_config: the rules between keys.
//
// Errors come all at once, like those of load_config; settings that are allowed but have no effect, or are rarely
// meant, are warnings. Pure functions. Source of the rules: verl's validate_config and TRL's GRPOConfig.__post_init__.
#pragma once

#include <vector>

#include "config/batch_plan.h"
#include "config/key_use.h"
#include "config/load.h"

namespace mortise {

// The warnings (kind kConfig; print with to_string()), or one Error with every problem.
Result<std::vector<Error>> check_config(const LoadedConfig& loaded, ConfigUse use);

}  // namespace mortise
