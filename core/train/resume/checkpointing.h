// Saves a run. A checkpoint is a folder with the exact-resume state, the settings and the lock of the packs, and
// huggingface/, a folder that transformers loads, or PEFT if an adapter is trained. (core/checkpoint defines the
// format; Model::plan_save decides the form of the weights there.)
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <string_view>

#include "checkpoint/place.h"
#include "checkpoint/writer.h"
#include "train/resume/checkpoint_files.h"

namespace mortise {

class RunLog;

// Before the first step: is there room on the disk for the next two checkpoints (for one, if the run saves only one more),
// with what retention frees between them? An Error of kind kDisk says how much is missing and what to free. Warns if all
// checkpoints of the run will not fit.
// `next_bytes`: of the next checkpoint (measure_next_checkpoint). `resumes`: what is in the run's folder stays there.
Result<> check_room(const CheckpointSource& source, uint64_t next_bytes, bool resumes);

// Before the first step: every rank sees the run's folder, where all will write their parts of a checkpoint. A collective.
// The Error, of kind kConfig, names the rank that does not.
Result<> check_shared_folder(const RunSettings& run);

// When a run saves and what becomes of a save that fails: the same for `train` and `sft`.
//
// A save first brings the rows of `log` to the disk, so that a resume finds them. A save that fails is told, the
// checkpoints before it stay, and the run tries again at the next save; kMaxFailedSaves in a row stop it. A save that has
// no next one is tried kLastAttempts times.
//
// Several ranks save together, each its own files (checkpoint/writer.h), and count the failures alike. After an error that
// only some ranks may have, rank 0 saves alone, if it has the whole state.
class RunSaver {
 public:
  static constexpr int64_t kMaxFailedSaves = 3;
  static constexpr int64_t kLastAttempts = 3;

  RunSaver(const CheckpointSource& source, RunLog& log)
      : source_(source), log_(&log), saved_step_(source.progress.counters.step) {}

  // Before a step, for keep_finished_steps: stages advance plugins and controllers before anything is learnt.
  void step_begins();
  // Something other than the policy learns inside the step, so that its earlier state is lost.
  void learning_begins() { before_step_.reset(); }
  // Before an update inside a step, where it is one of trainer.save_freq_updates. Calls `settle` before it reads the state.
  Result<> save_inside_if_due(const std::function<void()>& settle);

  // Saves if the step is one of trainer.save_freq, the best validation so far, or the last. The last save must succeed.
  Result<> save_if_due();
  // The newest finished step is no longer what its checkpoint says, and has to be saved again before the run ends; at
  // once if it is the best.
  Result<> save_changed_step();
  // At the end of the run.
  Result<> finish();
  // A step failed without any update: saves the progress before it, unless that is what failed (diverged weights are no
  // checkpoint to resume from). If ranks share the state, it is saved only after an error that all of them have.
  void keep_finished_steps(const Error& why);
  // A finished step broke a limit, or what came after its updates failed (its validation): the same.
  void keep_last_step(const Error& why);

  [[nodiscard]] const std::string& last_checkpoint() const { return last_checkpoint_; }  // empty if none was saved
  // The seconds of all saves since the last call.
  [[nodiscard]] double take_seconds();
  // Saves that failed since the last one that succeeded.
  [[nodiscard]] int64_t num_failed() const { return num_failed_; }

 private:
  enum class Kind {
    kDue,   // the next one makes up for it
    kKept,  // a run that ends by another error
    kLast,  // its failure is the run's
  };
  Result<> save(Kind kind);
  Result<> save_state(const CheckpointPlace& place, StateSnapshot state, Kind kind);
  [[nodiscard]] Result<> check_same_parts(const StateSnapshot& state, const Error& unless) const;
  Result<std::string> save_alone(const Result<CheckpointRequest>& request);
  Result<std::string> save_together(const Result<CheckpointRequest>& request, const PolicyPlan& plan);
  Result<std::string> tell_saved(Result<SavedCheckpoint> saved) const;
  [[nodiscard]] CheckpointWriter writer() const;
  Result<> mark_best(const Path& checkpoint) const;
  Result<> tell_failed(const CheckpointPlace& place, Error error, Kind kind);
  void tell_kept(int64_t step) const;
  [[nodiscard]] bool can_keep(const Error& why) const;
  [[nodiscard]] bool saves_together(Kind kind) const {
    return source_.run.ranks.size() > 1 && (kind != Kind::kKept || source_.is_spread);
  }

  CheckpointSource source_;
  RunLog* log_;
  int64_t saved_step_;  // the newest finished one; of a resume: its checkpoint
  struct BeforeStep {
    int64_t step = 0;     // finished then
    StateSnapshot state;  // borrows the optimizer's tensors, which the first update changes
  };
  std::optional<BeforeStep> before_step_;
  int64_t num_failed_ = 0;
  double seconds_ = 0.0;
  std::string last_checkpoint_;
};

}  // namespace mortise
