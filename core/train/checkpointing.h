// Saving a run. A checkpoint is a folder with the exact-resume state, the settings and the lock of the packs, and
// huggingface/, a folder that transformers loads, or PEFT where an adapter is trained (core/checkpoint draws the
// format; what the weights look like there is Model::plan_save's alone).
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "checkpoint/place.h"
#include "train/run_parts.h"

namespace mortise {

inline constexpr std::string_view kSettingsFile = "config.resolved.toml";
inline constexpr std::string_view kPackLockFile = "mortise.lock";

// Saves `state` (of parts.stateful) with the policy of now; then drops old checkpoints
// (trainer.max_actor_ckpt_to_keep).
Result<Path> save_run(RunParts& parts, const CheckpointPlace& place, StateSnapshot state);

// When a run saves and what becomes of a save that fails: the same for `train` and `sft`.
class RunSaver {
 public:
  explicit RunSaver(RunParts& parts) : parts_(&parts), saved_step_(parts.counters.step) {}

  // Before a step, for keep_finished_steps: stages advance plugins and controllers before anything is learnt.
  void step_begins();
  // Something else than the policy learns inside the step, so that what was before it is gone.
  void learning_begins() { before_step_.reset(); }
  // Before an update inside a step, where it is one of trainer.save_freq_updates. A failed save is told, as below.
  Result<> save_inside_if_due();

  // Where the step is one of trainer.save_freq, or the last. A failed save is told and the run goes on: the last good
  // checkpoint still stands. Only the last one must succeed.
  Result<> save_if_due();
  // The newest finished step is no longer what its checkpoint says, and has to be saved again before the run ends.
  void step_changes() { saved_step_ = -1; }
  // At the end of the run.
  Result<> finish();
  // A step failed before it learnt anything: what was learnt before it stays, unless it is what failed (weights that
  // diverged are no checkpoint to resume from).
  void keep_finished_steps(const Error& why);
  // A finished step broke a limit, or what came after its updates failed (its validation): the same.
  void keep_last_step(const Error& why);

  [[nodiscard]] const std::string& last_checkpoint() const { return last_checkpoint_; }  // empty: none was saved
  // Of the saves since it was asked for last.
  [[nodiscard]] double take_seconds();

 private:
  Result<> save(bool must_succeed);
  Result<> save_state(const CheckpointPlace& place, StateSnapshot state, bool must_succeed);
  void tell_kept(int64_t step) const;

  RunParts* parts_;
  int64_t saved_step_;                        // the newest finished one; of a resume: its checkpoint
  std::optional<StateSnapshot> before_step_;  // borrows the optimizer's tensors, which the first update changes
  double seconds_ = 0.0;
  std::string last_checkpoint_;
};

}  // namespace mortise
