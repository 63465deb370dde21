// A worker: holds one reward instance and scores the pieces that it gets, until its connection ends.
//
// It writes the current row into shared memory before it scores it, so that a crash or a hang names its row. Threading:
// the single thread of the process; a plugin may start others.
#pragma once

#include "plugin/host/registry.h"
#include "plugin/worker/channel.h"
#include "plugin/worker/messages.h"
#include "plugin/worker/system.h"

namespace mortise {

// Runs the pack named in `load` out of the library cache of this process. Returns when the trainer has hung up.
void serve(Channel& channel, const LoadMessage& load, WorkerSystem& system);

// The pack of `load`, in memory; verified against the hash that the trainer saw.
Result<LoadedPlugin> load_for_worker(const LoadMessage& load);

}  // namespace mortise
