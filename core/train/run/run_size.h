// What a run computes with and needs in memory, from its settings and the folders that they name: for `--dry-run`, and for
// what a run on a device says when the memory is full. Loads no weights.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "config/batch_plan.h"
#include "config/load.h"
#include "foundation/base/device_name.h"
#include "foundation/base/env.h"
#include "model/adapters/trained_lora.h"
#include "model/weights/model_config.h"
#include "plugin/host/registry.h"
#include "train/loop/parts.h"
#include "train/run/memory_estimate.h"
#include "train/run/rank_estimate.h"

namespace mortise {

struct RunSize {
  RunKind kind = RunKind::kTrain;
  RunConfig config;  // what is counted: a supervised run is a step of one update
  ModelConfig model;
  std::optional<LoraSize> lora;
  BatchPlan plan;
  TrainedSize trained;
  MemoryEstimate memory;
  RankEstimate ranks;
  std::optional<std::string> not_reused;  // why updates compute what sampling has computed; nothing: they read it
  double trained_state_bytes = 0, critic_state_bytes = 0;  // in a checkpoint
};

// Its config, model and adapter. The kind is train or sft.
Result<RunSize> begin_run_size(Env& env, const LoadedConfig& loaded, RunKind kind);

// All else. `device`: the one that the run takes. `num_val`: rows of its validations; a supervised run samples for these alone.
Result<> measure_run(Env& env, const PluginRegistry& registry, const LoadedConfig& loaded, const DeviceName& device,
                     int num_ranks, int64_t num_val, RunSize& out);

}  // namespace mortise
