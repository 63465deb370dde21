#include "train/checkpointing.h"

#include <algorithm>
#include <utility>

#include "checkpoint/reader.h"
#include "checkpoint/room.h"
#include "checkpoint/writer.h"
#include "config/show.h"
#include "foundation/base/clock.h"
#include "foundation/base/log.h"
#include "foundation/base/text.h"
#include "train/pack_lock.h"
#include "train/run_log.h"

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

Result<CheckpointRequest> checkpoint_request(const RunParts& parts, const CheckpointPlace& place, StateSnapshot state) {
  CheckpointRequest request;
  request.place = place;
  request.state = std::move(state);
  request.files = TRY(policy_files(parts));
  request.files.push_back(checkpoint_text_file(std::string(kSettingsFile), config_to_toml(parts.loaded)));
  request.files.push_back(
      checkpoint_text_file(std::string(kPackLockFile), pack_lock_text(*parts.registry, parts.config)));
  return request;
}

int64_t num_kept(const RunConfig& config) { return config.trainer.max_actor_ckpt_to_keep.value_or(0); }

std::string count_of_checkpoints(int64_t count) {
  return count == 1 ? "1 checkpoint" : std::to_string(count) + " checkpoints";
}

// What a user can do about `missing` bytes.
std::string how_to_make_room(const SaveRoom& room, const SavePlan& plan, uint64_t missing) {
  std::string text = "free " + format_bytes(missing) + " there, or choose another trainer.default_local_dir";
  if (room.num_existing > (plan.starts_over ? 0 : 1))
    text += "; " + count_of_checkpoints(room.num_existing) + " in this folder take " +
            format_bytes(room.existing_bytes) +
            ": delete old ones, or set trainer.max_actor_ckpt_to_keep to keep fewer";
  return text;
}

// The run keeps more than fits, by its own settings.
Result<> warn_of_all_saves(const RunParts& parts, const Path& run_dir, SavePlan plan) {
  const int64_t frequency = parts.config.trainer.save_freq;
  if (frequency <= 0) return {};
  const int64_t num_saves = (parts.total_steps + frequency - 1) / frequency - parts.counters.step / frequency;
  // Beyond the kept ones nothing more is needed.
  plan.num_saves = plan.keep_last > 0 ? std::min(num_saves, plan.keep_last + 1) : 1;
  SaveRoom room = TRY(measure_room(parts.env, run_dir, plan));
  if (plan.keep_last == 0) room.needed_bytes += static_cast<uint64_t>(num_saves - 1) * plan.checkpoint_bytes;
  if (room.is_enough()) return {};
  log_warn("the disk will be full before the run ends: the " + count_of_checkpoints(num_saves) + " to come need " +
           format_bytes(room.needed_bytes) + " and " + format_bytes(room.free_bytes) + " are free at " +
           run_dir.string() +
           (plan.keep_last > 0 ? "; lower trainer.max_actor_ckpt_to_keep (" + std::to_string(plan.keep_last) + ")"
                               : "; set trainer.max_actor_ckpt_to_keep to keep only the newest"));
  return {};
}

}  // namespace

Result<> check_room(const RunParts& parts, bool resumes) {
  if (parts.counters.step >= parts.total_steps) return {};  // nothing more is learnt
  const Path run_dir = parts.config.trainer.default_local_dir;
  SavePlan plan;
  plan.place = {parts.counters.step, {}};
  plan.keep_last = num_kept(parts.config);
  StateSnapshot state = TRY(parts.stateful.save());
  const CheckpointRequest request = TRY(checkpoint_request(parts, plan.place, std::move(state)));
  plan.checkpoint_bytes = TRY(measure_checkpoint(request));
  plan.starts_over = !resumes;
  Result<SaveRoom> measured = measure_room(parts.env, run_dir, plan);
  if (!measured.ok()) {
    log_warn("cannot tell whether there is room for checkpoints: " + measured.error().to_string());
    return {};
  }
  SaveRoom room = *measured;
  if (resumes && parts.config.trainer.save_freq_updates > 0) {
    plan.inside_step = true;
    room.needed_bytes = std::max(room.needed_bytes, TRY(measure_room(parts.env, run_dir, plan)).needed_bytes);
    plan.inside_step = false;
  }
  if (room.is_enough()) return warn_of_all_saves(parts, run_dir, plan);
  return Error{ErrorKind::kDisk,
               "there is no room for two more checkpoints of " + format_bytes(plan.checkpoint_bytes) + " each: " +
                   format_bytes(room.needed_bytes) + " are needed and " + format_bytes(room.free_bytes) + " are free",
               run_dir.string(), how_to_make_room(room, plan, room.needed_bytes - room.free_bytes)};
}

Result<Path> save_run(RunParts& parts, const CheckpointPlace& place, StateSnapshot state) {
  CheckpointWriterOptions options;
  options.keep_last = num_kept(parts.config);
  const CheckpointRequest request = TRY(checkpoint_request(parts, place, std::move(state)));
  CheckpointWriter writer(parts.env, parts.config.trainer.default_local_dir, options);
  SavedCheckpoint saved = TRY(writer.save(request));
  if (saved.not_announced) return *std::move(saved.not_announced);
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
  const auto save_all = [&]() -> Result<Path> {
    TRY(log_->sync());
    return save_run(*parts_, place, std::move(state));
  };
  const Result<Path> saved = save_all();
  if (!saved.ok()) return tell_failed(place, saved.error(), must_succeed);
  if (num_failed_ > 0)
    log_warn("saving works again after " + std::to_string(num_failed_) +
             (num_failed_ == 1 ? " failed save" : " failed saves"));
  num_failed_ = 0;
  if (!place.update) saved_step_ = place.step;
  last_checkpoint_ = saved->string();
  seconds_ += watch.elapsed_s();
  return {};
}

Result<> RunSaver::tell_failed(const CheckpointPlace& place, Error error, bool must_succeed) {
  ++num_failed_;
  std::string last_good = last_checkpoint_;
  if (last_good.empty()) {
    const auto found = find_newest_valid(parts_->env, parts_->config.trainer.default_local_dir);
    if (found.ok() && found->has_value()) last_good = (*found)->ref.path.string();
  }
  const bool has_one = !last_good.empty();
  last_good = has_one ? "the last good checkpoint is " + last_good : "the run has no checkpoint yet";
  error.what = "the checkpoint " + checkpoint_name(place) + " could not be saved: " + error.what;
  if (must_succeed || num_failed_ >= kMaxFailedSaves) {
    if (num_failed_ > 1) error.what = std::to_string(num_failed_) + " saves in a row failed; " + error.what;
    error.what += "; " + last_good;
    error.next += std::string(error.next.empty() ? "" : "; then ") + "start the same command again" +
                  (has_one ? " to resume from it" : "");
    return error;
  }
  log_error("SAVE FAILED (" + std::to_string(num_failed_) + " in a row, the run stops after " +
            std::to_string(kMaxFailedSaves) + "): " + error.to_string());
  log_error("training goes on and saves again when the next save is due; " + last_good);
  return {};
}

}  // namespace mortise
