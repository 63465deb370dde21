// What a run needs in addition to its settings, and what it tells, if completions may come from weights of an earlier
// step: with trainer.mode = "one_step_off" or "async", or with rollout.over_sampling above 1. Nothing to do without.
// core/config/learning_rules.cpp checks the settings. Thread rule: one thread.
#pragma once

#include "config/load.h"
#include "learn/objective/actor_objective.h"
#include "plugin/host/instance.h"
#include "plugin/host/kinds/rollout_backend.h"
#include "train/sampling/rollout_ahead.h"

namespace mortise {

// An Error of kind kConfig if the advantage estimator samples again with the weights of its own step.
Result<> check_ahead_estimator(const LoadedConfig& loaded, const PluginInfo& estimator);

// An Error of kind kConfig if completions are sampled in pieces, and the backend cannot continue with newer weights.
Result<> check_ahead_backend(const LoadedConfig& loaded, const RolloutBackend& backend);

// Says how old completions are, and warns if nothing corrects for it.
void tell_ahead(const LoadedConfig& loaded, ActorObjective& objective);

// After a resume with changed settings: leaves out rollouts, with a warning, that have another number of rows than a step
// now has, are older than the new mode allows, or have unfinished rows of the new longest length.
void keep_ahead_if_it_fits(RolloutAhead& ahead, const RunConfig& config, int64_t rows_per_step);

}  // namespace mortise
