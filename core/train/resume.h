// Where a run goes on: the checkpoint to resume from, and whether the settings are still those it was made with.
#pragma once

#include <optional>
#include <string>

#include "checkpoint/reader.h"
#include "config/load.h"
#include "foundation/base/env.h"
#include "plugin/host/registry.h"

namespace mortise {

// Of the command line.
struct ResumeRequest {
  std::string mode;  // auto, never, or a global_step_N folder; empty: trainer.resume_mode
  bool allow_change = false;
};

// The verified checkpoint to resume from, or nothing for a fresh start. Settings that differ from those of the
// checkpoint's run (config.resolved.toml beside it), but for those that cannot change what is learnt, and plugins from
// other packs than then (mortise.lock beside it) are an error that lists them. A fresh start in a folder with
// checkpoints moves that folder aside first.
Result<std::optional<Checkpoint>> find_resume(Env& env, const LoadedConfig& loaded, const PluginRegistry& registry,
                                              const ResumeRequest& request);

}  // namespace mortise
