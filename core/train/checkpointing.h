// Saving a run. A checkpoint is global_step_N/ with the exact-resume state and huggingface/,
// a folder that transformers loads (core/checkpoint draws the format).
#pragma once

#include "train/run_parts.h"

namespace mortise {

// Saves the state after the last finished step; then drops old checkpoints (trainer.max_actor_ckpt_to_keep).
Result<Path> save_run(RunParts& parts);

}  // namespace mortise
