// Reward models without weights: mortise.score_model/1 for rewards that need it.
//
// Every score is a function of the row's texts, for any folder. A row without a completion fails. Threading: as the
// extension says.
#pragma once

#include "mortise/ext/score_model.h"

namespace mortise::check {

[[nodiscard]] const mortise_score_model_vtable* echo_scorer();

}  // namespace mortise::check
