// The RL loop: sample, score, advantages, updates, validation, checkpoints. For `mortise train` and `mortise eval`.
#pragma once

#include <string>

#include "config/key_use.h"
#include "config/load.h"
#include "foundation/base/env.h"
#include "foundation/base/result.h"
#include "learn/update/rank_share.h"
#include "train/resume/resume.h"

namespace mortise {

struct TrainSummary {
  int64_t steps = 0;            // done in all
  std::string last_checkpoint;  // empty if none was saved
  bool stopped_by_signal = false;
};

// `ranks` are the processes of the run. Each calls this with the same settings, and they share the work. Only the main
// rank writes files, except for the log of each rank. After an Error of its own, the caller tells the others
// (Communicator::fail).
Result<TrainSummary> train(Env& env, const LoadedConfig& loaded, const ResumeRequest& resume,
                           Communicator& ranks = alone());

// Validates model.path once; the metrics as {name: value}.
Result<Json> evaluate(Env& env, const LoadedConfig& loaded, Communicator& ranks = alone());

// What `train --dry-run` and `sft --dry-run` print: the settings, batch arithmetic and a memory estimate. Reads the
// model's config and counts data rows only. A run of several ranks also prints what each of them does and sends.
Result<std::string> dry_run(Env& env, const LoadedConfig& loaded, ConfigUse use, bool json,
                            const ResumeRequest& resume = {}, int num_ranks = 1);

}  // namespace mortise
