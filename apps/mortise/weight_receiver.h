// The end of mortise serve of a connection over which a trainer sends weights (core/serve/engine_port.h), over Gloo. The
// weights come straight into a safetensors file in memory, which the model then loads like any folder. So a set that is
// not whole is never loaded. Cost: one copy of the weights in shared memory until they are loaded.
#pragma once

#include <memory>

#include "foundation/base/env.h"
#include "serve/engine_port.h"

namespace mortise {

// Borrows the environment.
std::shared_ptr<WeightReceiver> make_weight_receiver(Env& env);

}  // namespace mortise
