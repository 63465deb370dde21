// What a run moves out of its way before it writes: an earlier run in its folder, and checkpoints of a course that a
// resume leaves. Nothing is deleted, and the log says where it is.
#pragma once

#include "checkpoint/reader.h"
#include "foundation/base/env.h"
#include "foundation/base/result.h"

namespace mortise {

// Before a fresh start writes its first file: where the folder has checkpoints or metrics of an earlier run, it is
// renamed to RUN_DIR.before_N, so that nothing is lost. An Error where another process still writes into it, and where
// it is the working folder.
Result<> set_earlier_run_aside(Env& env, const Path& run_dir);

// Before a resume from `resumed` changes a file: whole checkpoints of RUN_DIR that are further in the run go to
// RUN_DIR/abandoned_N, with copies of metrics.jsonl and updates.jsonl, whose later rows the resume drops. The run takes
// another course from here on. If one of its own checkpoints is damaged, a later resume must not continue from theirs.
Result<> set_later_checkpoints_aside(Env& env, const Path& run_dir, const CheckpointPlace& resumed);

}  // namespace mortise
