// Rules for what a run learns from: filtered log-probs, a teacher, chosen rows. check_config asks. Pure function.
#pragma once

#include <vector>

#include "config/load.h"

namespace mortise {

// What is wrong with these settings of `train`; empty if nothing is.
std::vector<Error> check_learning_rules(const LoadedConfig& loaded);

}  // namespace mortise
