#include "train/checkpointing.h"

#include <utility>

#include "checkpoint/writer.h"
#include "config/show.h"
#include "foundation/base/clock.h"
#include "foundation/base/log.h"
#include "train/pack_lock.h"

namespace mortise {

namespace {

// The policy as a Hugging Face folder: config, weights (or an adapter in PEFT's form), tokenizer files as they came.
Result<std::vector<CheckpointFile>> policy_files(const RunParts& parts) {
  std::vector<CheckpointFile> files;
  for (FolderFile& file : TRY(parts.model->plan_save(save_options(parts.config))))
    files.push_back({"huggingface/" + file.name, std::move(file.write)});
  const Path& folder = parts.folder->tokenizer_path;
  for (const std::string& name : TRY(list_tokenizer_files(folder, parts.env)))
    files.push_back(checkpoint_text_file("huggingface/" + name, TRY(parts.env.read_file(folder / name))));
  return files;
}

}  // namespace

Result<Path> save_run(RunParts& parts, const CheckpointPlace& place, StateSnapshot state) {
  CheckpointWriterOptions options;
  options.keep_last = parts.config.trainer.max_actor_ckpt_to_keep.value_or(0);
  CheckpointRequest request;
  request.place = place;
  request.state = std::move(state);
  request.files = TRY(policy_files(parts));
  request.files.push_back(checkpoint_text_file(std::string(kSettingsFile), config_to_toml(parts.loaded)));
  request.files.push_back(
      checkpoint_text_file(std::string(kPackLockFile), pack_lock_text(*parts.registry, parts.config)));
  CheckpointWriter writer(parts.env, parts.config.trainer.default_local_dir, options);
  const SavedCheckpoint saved = TRY(writer.save(request));
  for (const std::string& warning : saved.warnings) log_warn(warning);
  return saved.path;
}

void RunSaver::step_begins() {
  before_step_.reset();
  auto state = parts_->stateful.save();
  if (state.ok()) before_step_ = *std::move(state);  // else the next checkpoint tells why
}

Result<> RunSaver::save_inside_if_due() {
  const int64_t frequency = parts_->config.trainer.save_freq_updates;
  const auto done = static_cast<int64_t>(parts_->step.work.updates.size());
  if (frequency <= 0 || done % frequency != 0) return {};
  return save_state({parts_->counters.step, done}, TRY(parts_->stateful.save()), /*must_succeed=*/false);
}

Result<> RunSaver::save_if_due() {
  const int64_t step = parts_->counters.step;
  const int64_t frequency = parts_->config.trainer.save_freq;
  const bool is_last = step == parts_->total_steps;
  if (!is_last && (frequency <= 0 || step % frequency != 0)) return {};
  return save(/*must_succeed=*/is_last);
}

Result<> RunSaver::finish() { return saved_step_ == parts_->counters.step ? Result<>() : save(/*must_succeed=*/true); }

void RunSaver::keep_finished_steps(const Error& why) {
  const int64_t step = parts_->counters.step;
  if (step == 0 || saved_step_ == step || why.kind == ErrorKind::kNumerics || !before_step_) return;
  StateSnapshot state = std::move(*before_step_);
  before_step_.reset();
  if (save_state({step, {}}, std::move(state), /*must_succeed=*/false).ok()) tell_kept(step);
}

void RunSaver::keep_last_step(const Error& why) {
  const int64_t step = parts_->counters.step;
  if (why.kind == ErrorKind::kNumerics) return;
  if (save(/*must_succeed=*/false).ok()) tell_kept(step);
}

void RunSaver::tell_kept(int64_t step) const {
  if (saved_step_ == step) log_info("the " + std::to_string(step) + " finished steps are saved in " + last_checkpoint_);
}

double RunSaver::take_seconds() { return std::exchange(seconds_, 0.0); }

Result<> RunSaver::save(bool must_succeed) {
  return save_state({parts_->counters.step, {}}, TRY(parts_->stateful.save()), must_succeed);
}

Result<> RunSaver::save_state(const CheckpointPlace& place, StateSnapshot state, bool must_succeed) {
  const Stopwatch watch(parts_->env);
  auto saved = save_run(*parts_, place, std::move(state));
  if (!saved.ok()) {
    if (must_succeed) return std::move(saved).error();
    log_error("the checkpoint of step " + std::to_string(place.step) +
              (place.update ? ", " + std::to_string(*place.update) + " updates on," : "") +
              " could not be saved, earlier ones stand: " + saved.error().to_string());
    return {};
  }
  if (!place.update) saved_step_ = place.step;
  last_checkpoint_ = saved->string();
  seconds_ += watch.elapsed_s();
  return {};
}

}  // namespace mortise
