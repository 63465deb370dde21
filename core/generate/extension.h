// Host extension mortise.generate/1: the engine behind the rollout vtable of the C ABI.
//
// Every `create` makes its own engine on the installed model, so two backends never see each other's sequences. Slots
// are serialised per instance. sleep(1) and sleep(2) both free packed weights and KV cache. The weights themselves
// belong to the trainer.
#pragma once

#include "generate/engine.h"
#include "mortise/ext/generate.h"

namespace mortise {

// From now on `create` uses this model and these options; null takes the model away (create then fails with
// FAILED_PRECONDITION). The model must outlive all instances. Thread rule: not while an instance is being created.
void install_generate_model(const Model* model, const EngineOptions& options);

// What the host gives out for MORTISE_EXT_GENERATE. Valid for ever.
[[nodiscard]] const mortise_rollout_backend_vtable* generate_extension();

}  // namespace mortise
