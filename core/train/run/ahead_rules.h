// What a run with trainer.mode = "one_step_off" needs besides its settings (core/config/learning_rules.cpp checks those),
// and what it tells. Nothing to do with "sync". Thread rule: one thread.
#pragma once

#include "config/load.h"
#include "dist/communicator.h"
#include "experience/correction/rollout_correction.h"
#include "plugin/host/instance.h"
#include "train/loop/rollout_ahead.h"

namespace mortise {

// An Error of kind kConfig if the run has several ranks.
Result<> check_ahead_ranks(const LoadedConfig& loaded, const Communicator& ranks);
// An Error of kind kConfig if the advantage estimator samples again with the weights of its own step.
Result<> check_ahead_estimator(const LoadedConfig& loaded, const PluginInfo& estimator);

// Says that completions are a step old, and warns if nothing corrects for it.
void tell_ahead(const LoadedConfig& loaded, const RolloutCorrection& correction);

// After a resume with changed settings: a rollout with another number of rows than a step now has is left out, with a
// warning.
void keep_ahead_if_it_fits(RolloutAhead& ahead, int64_t rows_per_step);

}  // namespace mortise
