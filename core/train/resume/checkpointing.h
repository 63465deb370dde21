// Saves a run. A checkpoint is a folder with the exact-resume state, the settings and the lock of the packs, and
// huggingface/, a folder that transformers loads, or PEFT if an adapter is trained. (core/checkpoint defines the
// format; Model::plan_save decides the form of the weights there.)
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "checkpoint/place.h"
#include "checkpoint/writer.h"
#include "learn/optim/weight_shards.h"
#include "plugin/host/registry.h"
#include "train/loop/parts.h"

namespace mortise {

class RunLog;

inline constexpr std::string_view kSettingsFile = "config.resolved.toml";
inline constexpr std::string_view kPackLockFile = "mortise.lock";

// What a checkpoint is made from. Borrows all of it.
struct CheckpointSource {
  const RunSettings& run;
  const PluginRegistry& registry;    // for mortise.lock
  const PolicyParts& policy;         // for huggingface/
  const RunProgress& progress;       // the step, and the updates that are done inside one
  const StatefulRegistry& stateful;  // the state
  StateGather* gather = nullptr;     // gathers what other ranks have of it; null: nothing
  const Model* critic = nullptr;     // null if there is none

  // A collective: rank 0 has the weights that a checkpoint holds, until the answer goes.
  [[nodiscard]] Result<WholeWeights> gather_weights() const;
};

// Before the first step: is there room on the disk for the next two checkpoints (for one, if the run saves only one more),
// with what retention frees between them? An Error of kind kDisk says how much is missing and what to free. Warns if all
// checkpoints of the run will not fit.
// `resumes`: what is in the run's folder stays there.
Result<> check_room(const CheckpointSource& source, bool resumes);

// When a run saves and what becomes of a save that fails: the same for `train` and `sft`.
//
// A save first brings the rows of `log` to the disk, so that a resume finds them. A save that fails is told, the
// checkpoints before it stay, and the run tries again at the next save; kMaxFailedSaves in a row stop it. A save that has
// no next one is tried kLastAttempts times.
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
  // Before an update inside a step, where it is one of trainer.save_freq_updates.
  Result<> save_inside_if_due();

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
  Result<Path> save_once(const CheckpointRequest& request);
  Result<Path> save_at_last(const CheckpointRequest& request);
  Result<> mark_best(const Path& checkpoint) const;
  Result<> tell_failed(const CheckpointPlace& place, Error error, Kind kind);
  void tell_kept(int64_t step) const;
  [[nodiscard]] bool can_keep(const Error& why) const;
  [[nodiscard]] bool shares_state() const { return source_.gather != nullptr && !source_.gather->is_empty(); }

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
