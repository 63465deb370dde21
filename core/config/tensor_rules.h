// Rules for ranks that sample together (rollout.tensor_model_parallel_size): what does not go together with it. What depends on
// the model and the number of ranks: train/run/sequence_rules.h. Pure function.
#pragma once

#include "config/findings.h"
#include "config/load.h"

namespace mortise {

// `learns`: the run also has updates.
void check_rollout_tensor_rules(const LoadedConfig& loaded, bool learns, ConfigFindings& found);

}  // namespace mortise
