// Saving a run and finding where to go on. A checkpoint is global_step_N/ with the exact-resume state and huggingface/,
// a folder that transformers loads (core/checkpoint draws the format).
#pragma once

#include <optional>
#include <string>

#include "checkpoint/reader.h"
#include "train/run_parts.h"

namespace mortise {

// Saves the state after the last finished step; then drops old checkpoints (trainer.max_actor_ckpt_to_keep).
Result<Path> save_run(RunParts& parts);

// --resume auto|never|DIR, or trainer.resume_mode where the command line says nothing.
struct ResumeChoice {
  std::string mode = "auto";  // auto, never, or a checkpoint folder
};
ResumeChoice resume_choice(const RunConfig& config, const std::string& option);

// The verified checkpoint to resume from, or nothing for a fresh start.
Result<std::optional<Checkpoint>> find_resume(Env& env, const RunConfig& config, const ResumeChoice& choice);

}  // namespace mortise
