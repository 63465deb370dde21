// The RL loop: sample, score, advantages, updates, validation, checkpoints. `mortise train`, and `mortise eval` alone.
#pragma once

#include <string>

#include "config/load.h"
#include "foundation/base/env.h"
#include "foundation/base/result.h"
#include "train/resume.h"

namespace mortise {

struct TrainSummary {
  int64_t steps = 0;            // done in all
  std::string last_checkpoint;  // empty where none was saved
  bool stopped_by_signal = false;
};

Result<TrainSummary> train(Env& env, const LoadedConfig& loaded, const ResumeRequest& resume);

// Validates model.path once; the metrics as {name: value}.
Result<Json> evaluate(Env& env, const LoadedConfig& loaded);

// What `--dry-run` prints: the settings, batch arithmetic and a memory estimate. Reads the model's config and counts
// data rows only.
Result<std::string> dry_run(Env& env, const LoadedConfig& loaded, bool json);

}  // namespace mortise
