// The folder that a command samples with.
#pragma once

#include "config/run_config.h"
#include "foundation/base/env.h"

namespace mortise {

// The weights that a run with these settings begins with. An adapter's folder names its base itself.
inline Path sampled_folder(const ModelSection& model) { return model.lora_adapter_path.value_or(model.path); }

}  // namespace mortise
