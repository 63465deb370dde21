// A generator without a model: mortise.generate/1 for rollout backends that need it.
//
// Every completion is a function of seed, step, row and position. Threading: as a rollout backend.
#pragma once

#include "mortise/kinds/rollout_backend.h"

namespace mortise::check {

[[nodiscard]] const mortise_rollout_backend_vtable* echo_engine();

}  // namespace mortise::check
