// The stage of routing replay: the sampler's experts into the step's table (actor.router_replay.mode = "R3").
#pragma once

#include "experience/selection/experience.h"
#include "train/loop/parts.h"

namespace mortise {

// Moves the experts of the samples into the table. An Error if samples lack them, or if they are not this model's.
Result<> replay_stage(const RunSettings& run, const ModelConfig& model, Experience& experience, StepTable& table);

}  // namespace mortise
