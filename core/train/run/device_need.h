// The memory of a run's device: what `--dry-run` counts there, and what errors of a full memory tell.
#pragma once

#include "config/run_config.h"
#include "model/tensor/memory_need.h"
#include "plugin/host/registry.h"
#include "train/loop/parts.h"
#include "train/run/memory_estimate.h"

namespace mortise {

// What lies on a device, and the keys that lower it. Losses and the program itself stay on the host.
MemoryNeed device_need(const MemoryEstimate& memory, const RunConfig& config, int num_ranks);

// Predicts and logs what a run that learns on a device needs there (tell_memory_need). A warning says if it has less.
// A run whose size cannot be told has no prediction, and logs why. Reads no weights.
void predict_device_memory(const RunSettings& run, const PluginRegistry& registry);

}  // namespace mortise
