// *.offload: which numbers of a run lie in files in place of memory, and where. And what becomes of memory that is freed.
// Thread rule: one thread.
#pragma once

#include <string>

#include "config/load.h"
#include "foundation/base/env.h"
#include "learn/optim/optimizer.h"
#include "model/model.h"

namespace mortise {

// The state of `optimizer` and the master weights of `model`, if [table] ("actor.optim", "critic.optim") says so. To be
// called once, before the first step.
Result<> offload_optimizer(Env& env, const LoadedConfig& loaded, const std::string& table, Model& model,
                           Optimizer& optimizer);

// The program else keeps freed pages for its next step (keep_freed_memory in apps/mortise). The gaps between them are a sixth
// of a run's memory. A run that is short of it calls this: large tensors then give their pages back when they go, and what
// is free now does so at once.
void give_freed_pages_back();

// The weights of the reference, if ref.offload says so. Not for the view of an adapter's base.
Result<> offload_reference(Env& env, const LoadedConfig& loaded, Model& reference);

}  // namespace mortise
