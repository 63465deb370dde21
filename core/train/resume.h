// Where a run goes on: the checkpoint to resume from, and whether the settings are still those it was made with.
#pragma once

#include <optional>
#include <string>

#include "checkpoint/reader.h"
#include "config/load.h"
#include "foundation/base/env.h"
#include "plugin/host/registry.h"

namespace mortise {

struct RunParts;
enum class RunKind;

// Of the command line.
struct ResumeRequest {
  std::string mode;  // auto, never, or a global_step_N folder; empty: trainer.resume_mode
  bool allow_change = false;
};

// The verified checkpoint to resume from, or nothing for a fresh start. Settings that differ from those that it holds,
// but for those that cannot change what the command learns, and plugins from other packs than then are an error that
// lists them.
Result<std::optional<Checkpoint>> find_resume(Env& env, const LoadedConfig& loaded, const PluginRegistry& registry,
                                              RunKind kind, const ResumeRequest& request);

// Settings that differ, less those that cannot change what the command learns: "\n  actor.optim.lr: 4e-04 -> 1e-03"
// each.
std::string changed_settings(const RunConfig& before, const RunConfig& now, RunKind kind);

// Before a fresh start writes its first file: where the folder has checkpoints or metrics of an earlier run, it is
// renamed to RUN_DIR.before_N, so that nothing is lost. An Error where another process still writes into it, and where
// it is the working folder.
Result<> set_earlier_run_aside(Env& env, const Path& run_dir);

// The state of `checkpoint` into the parts; one of another command is refused before all else.
Result<> load_run(const Checkpoint& checkpoint, bool allow_change, RunParts& parts);

// The policy's weights alone, where the checkpoint's state has them.
Result<> load_policy_state(const Checkpoint& checkpoint, RunParts& parts);

// The folder that holds the checkpoint's weights exactly; nothing where its state does (then model.path is read first).
std::optional<Path> resume_weights(const std::optional<Checkpoint>& checkpoint);

}  // namespace mortise
