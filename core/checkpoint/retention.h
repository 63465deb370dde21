// Which checkpoints go after a new one is safe: all but the newest `keep_last`, oldest first.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "foundation/base/env.h"

namespace mortise {

// Deletes the oldest so that keep_last remain (0: none is deleted). `just_saved` is never touched. Each victim is first
// renamed to .deleting_NAME, so a crash inside cannot leave a half-deleted checkpoint that looks whole. Failures are
// returned as warnings: a checkpoint too many is no reason to stop.
std::vector<std::string> apply_retention(Env& env, const Path& run_dir, int64_t keep_last, const Path& just_saved);

// Removes what killed processes left: .tmp_*, .deleting_*, and .replaced_global_step_N where a valid global_step_N stands.
std::vector<std::string> remove_leftovers(Env& env, const Path& run_dir);

}  // namespace mortise
