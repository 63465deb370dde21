// Rules for ranks that share the layers of the policy (actor.tensor_model_parallel_size): what does not go together with
// it. What depends on the model and the number of ranks: train/run/sequence_rules.h. Pure function.
#pragma once

#include "config/findings.h"
#include "config/load.h"

namespace mortise {

void check_tensor_rules(const LoadedConfig& loaded, ConfigFindings& found);

}  // namespace mortise
