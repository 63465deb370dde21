// Rules for what is trained and in which numbers: optimizers, number formats, adapters, offloading. Pure function.
#pragma once

#include "config/findings.h"
#include "config/load.h"

namespace mortise {

void check_model_rules(const LoadedConfig& loaded, ConfigFindings& found);

}  // namespace mortise
