// The checkpoint to resume from, and whether its settings are still those of the run.
#pragma once

#include <optional>
#include <set>
#include <string>
#include <vector>

#include "checkpoint/reader.h"
#include "config/load.h"
#include "dist/communicator.h"
#include "foundation/base/env.h"
#include "model/model.h"
#include "plugin/host/registry.h"

namespace mortise {

struct BatchPlan;
struct DataParts;
struct PolicyParts;
struct RunCounters;
struct SavedParts;
struct StepWork;
enum class RunKind;

// From the command line.
struct ResumeRequest {
  std::string mode;  // auto, never, or a global_step_N folder; empty: trainer.resume_mode
  bool allow_change = false;
};

// The verified checkpoint to resume from, or nothing for a new start. It is an error, with a list, if settings that can
// change what the command learns differ from the checkpoint's, or if plugins come from other packs.
// The main rank chooses for all ranks, which verify it together.
Result<std::optional<Checkpoint>> find_resume(Env& env, const LoadedConfig& loaded, Communicator& ranks,
                                              const PluginRegistry& registry, RunKind kind,
                                              const ResumeRequest& request);

// The keys by which the learning rate depends on the length of the run, with their values. If there are some, a resume
// compares the length.
std::vector<std::string> keys_that_plan_ahead(const RunConfig& config, RunKind kind);

// Settings that differ, less those that cannot change what the command learns: "\n  actor.optim.lr: 4e-04 -> 1e-03"
// each.
std::string changed_settings(const RunConfig& before, const RunConfig& now, RunKind kind);

// Loads the checkpoint's state into the objects of `saved.stateful`. `counters` come first, so that a checkpoint of
// another command is refused before all else. The policy's weights are read from where the checkpoint has them.
Result<> load_run(const Checkpoint& checkpoint, bool allow_change, RunCounters& counters, PolicyParts& policy,
                  DataParts& data, SavedParts& saved);

// The states of a checkpoint whose parts this run has switched off, such as sft_mix.files; load_run leaves them out.
// `of_run`: the names of the states that the run has. An Error without --allow-change.
Result<std::set<std::string>> states_to_drop(const StateSnapshot& state, const std::vector<std::string>& of_run,
                                             bool allow_change, const Path& checkpoint);

// The columns that the updates of an unfinished step read.
struct ColumnNeeds {
  bool reference = false;  // ref_log_prob
  bool returns = false;    // the critic's returns
};
// An unfinished step that was loaded continues only if the settings still have the same meaning for it; nothing is
// wrong between steps.
Result<> check_unfinished_step(const StepWork& work, const BatchPlan& plan, ColumnNeeds needs, const Path& checkpoint);

// The policy's weights alone, where the checkpoint's state has them.
Result<> load_policy_state(const Checkpoint& checkpoint, Model& policy);

// The folder that holds the checkpoint's weights exactly; nothing where its state does (then model.path is read first).
std::optional<Path> resume_weights(const std::optional<Checkpoint>& checkpoint);

}  // namespace mortise
