// Reward models without weights: mortise.score_model/1 for rewards that stand on it.
//
// Every score is a function of the row's texts, whatever the folder; a row without a completion fails. Threading: as
// the extension says.
#pragma once

#include "mortise/ext/score_model.h"

namespace mortise::check {

[[nodiscard]] const mortise_score_model_vtable* echo_scorer();

}  // namespace mortise::check
