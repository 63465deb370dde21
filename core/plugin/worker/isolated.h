// Losses and estimators in a worker of their own (isolation = "process"): the same results as in this process, and a
// crash or a hang of the plugin is an error instead of the end of the trainer.
//
// One process holds the instance. Each call copies its inputs into shared memory and its outputs back, and takes two
// messages. If the worker ends in a call, a new one gets the plugin's state as after the last call, and the call is made
// once more; a second end is an error. A call beyond plugins.call_timeout is an error at once. Threading: one call at a
// time per instance.
#pragma once

#include "plugin/host/instance.h"
#include "plugin/worker/placement.h"

namespace mortise {

// For PolicyLoss::create and its like. Empty if `options` say that such plugins run in this process.
[[nodiscard]] RemoteMaker isolated(IsolationOptions options);

}  // namespace mortise
