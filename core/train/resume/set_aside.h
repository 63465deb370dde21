// What a run moves out of its way before it writes: an earlier run in its folder, and checkpoints of a branch that a
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

// A checkpoint of the run's folder continues what is in it. One below it, in RUN_DIR/abandoned_N, is of a branch that
// the run left. One elsewhere is of another run.
enum class CheckpointHome { kRunFolder, kBelow, kElsewhere };
CheckpointHome home_of(const Path& checkpoint, const Path& run_dir);

// Before a resume from `resumed` in RUN_DIR changes a file: whole checkpoints of RUN_DIR that are further in the run go
// to RUN_DIR/abandoned_N, with copies of metrics.jsonl and updates.jsonl, whose later rows the resume drops. The run
// branches off here. If one of its own checkpoints is damaged, a later resume must not continue from
// theirs.
Result<> set_later_checkpoints_aside(Env& env, const Path& run_dir, const CheckpointPlace& resumed);

// The same before a resume from `checkpoint`, which is below RUN_DIR: the branch that RUN_DIR holds goes to
// RUN_DIR/abandoned_N as a whole, and the rows next to the checkpoint come in its place. A checkpoint that an earlier
// resume has set aside returns to RUN_DIR. Gives the place where the checkpoint is then.
Result<Path> return_to_branch(Env& env, const Path& run_dir, const Path& checkpoint, const CheckpointPlace& place);

// Before a resume from another run's checkpoint: the earlier run in RUN_DIR is set aside as before a fresh start, and
// the new one begins with a copy of the rows next to the checkpoint, if there are some.
Result<> begin_from_other_run(Env& env, const Path& run_dir, const Path& checkpoint);

}  // namespace mortise
