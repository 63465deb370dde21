// The configuration in the terms of the rooms below: how updates are computed, cut and scheduled, how models are saved.
// Pure functions.
#pragma once

#include <cstdint>
#include <vector>

#include "config/run_config.h"
#include "learn/optim/adamw.h"
#include "learn/optim/schedule.h"
#include "learn/update/learner_options.h"
#include "model/model.h"

namespace mortise {

// [*.optim] for a model and its optimizer.
std::vector<OptimizedParameter> optimized_parameters(Model& model);
AdamWOptions adamw_options(const OptimConfig& optim);
// How the ranks share an optimizer's state.
ZeroOptions zero_options(const RunConfig& config, Communicator& ranks);
ScheduleOptions schedule_options(const OptimConfig& optim, int64_t total_steps, int64_t updates_per_step);

// The adapter that [model] asks for; without a meaning if lora_rank is 0.
LoraChoice lora_choice(const ModelSection& model);

// How the run's model folders are saved.
SaveOptions save_options(const RunConfig& config);

// How updates (also of sft) are computed, cut into passes, and shared by ranks.
LearnerOptions learner_options(const RunConfig& config, Communicator& ranks = alone());
MicroBatchOptions micro_batch_options(const RunConfig& config);
// The same of the reference's passes, [ref] over [actor].
MicroBatchOptions reference_pass_options(const RunConfig& config);

}  // namespace mortise
