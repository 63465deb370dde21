// Which checkpoints are deleted after a new one is safe. Between steps, all except the `keep_last` best: the one just
// saved is the best, then those of earlier steps from new to old, then those of later steps (from a part of the run
// that a resume left). A checkpoint inside a step is needed only until the next one is complete. It never counts, and
// saving it deletes none between steps. The checkpoint that RUN/best names never goes and does not count.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "checkpoint/reader.h"
#include "foundation/base/env.h"

namespace mortise {

// Those of `all` that go after the one at `just_saved` is safe, by the rule above. It must be among them. `best`: the
// path of the best one; may be empty.
std::vector<CheckpointRef> superseded_checkpoints(std::vector<CheckpointRef> all, int64_t keep_last,
                                                  const Path& just_saved, const Path& best = {});

// Deletes so that keep_last remain (0: all between steps do). `just_saved` is never touched. Failures are returned as
// warnings: a checkpoint too many is no reason to stop.
std::vector<std::string> apply_retention(Env& env, const Path& run_dir, int64_t keep_last, const Path& just_saved);

// Renames it to .deleting_NAME, out of the readers' sight in one step, then deletes file by file: a crash inside leaves
// no half-deleted checkpoint that looks whole.
Result<> remove_checkpoint(Env& env, const Path& path);

// What killed processes left and nothing reads: .tmp_*, .deleting_*, and .replaced_NAME if a valid NAME exists.
Result<std::vector<Path>> list_leftovers(Env& env, const Path& run_dir);
// Removes them.
std::vector<std::string> remove_leftovers(Env& env, const Path& run_dir);

}  // namespace mortise
