// Saving a run. A checkpoint is global_step_N/ with the exact-resume state and huggingface/,
// a folder that transformers loads (core/checkpoint draws the format).
#pragma once

#include <string>

#include "train/run_parts.h"

namespace mortise {

// Saves the state after the last finished step; then drops old checkpoints (trainer.max_actor_ckpt_to_keep).
Result<Path> save_run(RunParts& parts);

// When a run saves and what becomes of a save that fails: the same for `train` and `sft`.
class RunSaver {
 public:
  explicit RunSaver(RunParts& parts) : parts_(&parts), saved_step_(parts.counters.step) {}

  // Where the step is one of trainer.save_freq, or the last. A failed save is told and the run goes on: the last good
  // checkpoint still stands. Only the last one must succeed.
  Result<> save_if_due();
  // At the end of the run.
  Result<> finish();
  // A step failed before it learnt anything: what was learnt before it stays, unless it is what failed (weights that
  // diverged are no checkpoint to resume from).
  void keep_finished_steps(const Error& why);

  [[nodiscard]] const std::string& last_checkpoint() const { return last_checkpoint_; }  // empty: none was saved
  // Of the last save; 0 where it was asked for before.
  [[nodiscard]] double take_seconds();

 private:
  Result<> save(bool must_succeed);

  RunParts* parts_;
  int64_t saved_step_;  // of a resume: its checkpoint
  double seconds_ = 0.0;
  std::string last_checkpoint_;
};

}  // namespace mortise
