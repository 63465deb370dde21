// What `train` and `sft` share: how a run is opened or resumed, and its loop over steps.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>

#include "checkpoint/reader.h"
#include "train/loop/trainer.h"
#include "train/report/run_log.h"
#include "train/resume/checkpointing.h"
#include "train/run/run_parts.h"

namespace mortise {

struct OpenRun {
  std::unique_ptr<RunParts> parts;
  std::unique_ptr<RunLog> log;
  // The run is resumed and nothing is left to do: its last checkpoint.
  std::optional<Path> finished_in;
};

// Makes the parts, loads the checkpoint into them, and opens the log. A fresh start sets an earlier run in the folder
// aside.
Result<OpenRun> open_run(Env& env, const LoadedConfig& loaded, Communicator& ranks, PluginRegistry registry,
                         RunKind kind, const std::optional<Checkpoint>& checkpoint, bool allow_change);

// The first that the ranks of a run do: they open the device, and all must have the same settings, and threads where
// bits depend on them. From now on only the main rank's log lines go to the console.
Result<> meet_ranks(Communicator& ranks, const LoadedConfig& loaded, RunKind kind);

// The main rank opens the files of the run. The others then have a log that writes nothing, and rank_K.log.
Result<RunLog> open_log_on_ranks(const RunSettings& run, const PluginRegistry* registry, const RunLogOptions& options);

// The summary of a run that had nothing left to do.
Result<TrainSummary> close_finished(const OpenRun& run);

// Validates the weights of the moment it is called; empty without a validator. Borrows all.
std::function<Result<ValidationReport>(int64_t step)> validation_of(const RunConfig& config, PolicyParts& policy,
                                                                    std::optional<Validator>& validator,
                                                                    const RunCounters& counters);

// Calls `step(number)` until it answers true (nothing more is to be learnt), the steps are done or a signal asks a rank
// to stop; then saves and closes the log. `is_done`: not even once. The weights of the ranks are compared every
// trainer.rank_check_freq steps.
Result<TrainSummary> run_steps(OpenRun& run, RunSaver& saver, bool is_done,
                               const std::function<Result<bool>(int64_t)>& step);

}  // namespace mortise
