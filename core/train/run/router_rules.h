// What the keys of routers ask of the model and of the rollout backend. Pure functions.
#pragma once

#include "config/load.h"
#include "model/weights/model_config.h"
#include "plugin/host/instance.h"

namespace mortise {

// An Error of kind kConfig if a key of routers is set and the model has none.
Result<> check_routers(const LoadedConfig& loaded, const ModelConfig& model);
// The same if the sampler's experts are wanted, and the backend does not sample with the engine, which tells them.
Result<> check_replay_backend(const LoadedConfig& loaded, const PluginInfo& backend);

}  // namespace mortise
