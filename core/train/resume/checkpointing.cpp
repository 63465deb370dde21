// Collects the contents of a checkpoint, checks for room, and saves at the configured steps.
#include "train/resume/checkpointing.h"

#include <fmt/core.h>

#include <algorithm>
#include <chrono>
#include <functional>
#include <thread>
#include <utility>

#include "checkpoint/reader.h"
#include "checkpoint/retention.h"
#include "checkpoint/room.h"
#include "foundation/base/clock.h"
#include "foundation/base/hints.h"
#include "foundation/base/log.h"
#include "foundation/base/rename_target.h"
#include "foundation/base/shown_text.h"
#include "foundation/base/text.h"
#include "train/loop/decision.h"
#include "train/report/run_log.h"

namespace mortise {

namespace {

constexpr std::string_view kSaveStage = "saving the checkpoint";

int64_t num_kept(const RunConfig& config) { return config.trainer.max_actor_ckpt_to_keep.value_or(0); }

// What a user can do about `missing` bytes.
std::string how_to_make_room(const SaveRoom& room, const SavePlan& plan, uint64_t missing) {
  std::string text = fmt::format("free {} there, or choose another trainer.default_local_dir", format_bytes(missing));
  if (room.num_existing > (plan.starts_over ? 0 : 1))
    text += fmt::format(
        "; {} in this folder take {}: delete old ones, or set trainer.max_actor_ckpt_to_keep to keep "
        "fewer",
        counted(room.num_existing, "checkpoint"), format_bytes(room.existing_bytes));
  return text;
}

// To come in this run, those inside steps aside. The last step is always saved.
int64_t num_saves_to_come(const CheckpointSource& source) {
  const int64_t frequency = source.run.config.trainer.save_freq;
  if (frequency <= 0) return 1;
  return (source.run.total_steps + frequency - 1) / frequency - source.progress.counters.step / frequency;
}

// The run keeps more than fits, by its own settings.
Result<> warn_of_all_saves(const CheckpointSource& source, const Path& run_dir, SavePlan plan) {
  const int64_t num_saves = num_saves_to_come(source);
  // Beyond the kept ones nothing more is needed.
  plan.num_saves = plan.keep_last > 0 ? std::min(num_saves, plan.keep_last + 1) : 1;
  SaveRoom room = TRY(measure_room(source.run.env, run_dir, plan));
  if (plan.keep_last == 0) room.needed_bytes += static_cast<uint64_t>(num_saves - 1) * plan.checkpoint_bytes;
  if (room.is_enough()) return {};
  log_warn(fmt::format("the disk will be full before the run ends: the {} to come need {} and {} are free at {}{}",
                       counted(num_saves, "checkpoint"), format_bytes(room.needed_bytes), format_bytes(room.free_bytes),
                       run_dir.string(),
                       (plan.keep_last > 0 ? fmt::format("; lower trainer.max_actor_ckpt_to_keep ({})", plan.keep_last)
                                           : "; set trainer.max_actor_ckpt_to_keep to keep only the newest")));
  return {};
}

}  // namespace

Result<> check_room(const CheckpointSource& source, uint64_t next_bytes, bool resumes) {
  if (source.progress.counters.step >= source.run.total_steps) return {};  // nothing more is learnt
  const Path run_dir = source.run.config.trainer.default_local_dir;
  SavePlan plan;
  plan.place = {source.progress.counters.step, {}};
  plan.keep_last = num_kept(source.run.config);
  plan.checkpoint_bytes = next_bytes;
  plan.starts_over = !resumes;
  if (source.run.config.trainer.save_freq_updates <= 0)
    plan.num_saves = std::min(plan.num_saves, num_saves_to_come(source));
  const std::string planned = plan.num_saves == 1
                                  ? "one more checkpoint of " + format_bytes(plan.checkpoint_bytes)
                                  : fmt::format("two more checkpoints of {} each", format_bytes(plan.checkpoint_bytes));
  Result<SaveRoom> measured = measure_room(source.run.env, run_dir, plan);
  if (!measured.ok()) {
    log_warn("cannot tell whether there is room for checkpoints: " + measured.error().to_string());
    return {};
  }
  SaveRoom room = *measured;
  if (resumes && source.run.config.trainer.save_freq_updates > 0) {
    plan.inside_step = true;
    room.needed_bytes = std::max(room.needed_bytes, TRY(measure_room(source.run.env, run_dir, plan)).needed_bytes);
    plan.inside_step = false;
  }
  if (room.is_enough()) return warn_of_all_saves(source, run_dir, plan);
  return Error{ErrorKind::kDisk,
               fmt::format("there is no room for {}: {} are needed and {} are free", planned,
                           format_bytes(room.needed_bytes), format_bytes(room.free_bytes)),
               run_dir.string(), how_to_make_room(room, plan, room.needed_bytes - room.free_bytes)};
}

Result<> check_shared_folder(const RunSettings& run) {
  constexpr std::string_view kStage = "looking for the run's folder";
  constexpr int kLooks = 20;  // a network's disk may show a new file late
  if (run.ranks.size() == 1) return {};
  const Path run_dir = run.config.trainer.default_local_dir;
  const auto make = [&]() -> Result<std::string> {
    TRY(create_dirs_synced(run.env, run_dir));
    const Path file = temporary_beside(run.env, run_dir / "shared");
    const auto opened = TRY(run.env.open_for_write(file, WriteMode::kExclusive));
    TRY(opened->close());
    return file.filename().string();
  };
  const std::string name = TRY(on_main_rank(run.ranks, kStage, make));
  const auto look = [&]() -> Result<std::string> {
    for (int i = 0; i < kLooks; ++i) {
      if (run.env.exists(run_dir / name)) return std::string();
      std::this_thread::sleep_for(std::chrono::milliseconds(100));
    }
    return Error{ErrorKind::kConfig, "this rank does not see the run's folder of rank 0", run_dir.string(),
                 hints::kSharedDisk};
  };
  const auto seen = on_every_rank(run.ranks, kStage, look);
  if (run.ranks.is_main()) (void)run.env.unlink(run_dir / name);  // the next save removes what is left of it
  if (!seen.ok()) return seen.error();
  return {};
}

void RunSaver::step_begins() {
  before_step_.reset();
  auto state = source_.stateful.save();
  if (state.ok())
    before_step_ = BeforeStep{source_.progress.counters.step, *std::move(state)};  // else the next checkpoint tells why
}

Result<> RunSaver::save_inside_if_due(const std::function<void()>& settle) {
  const int64_t frequency = source_.run.config.trainer.save_freq_updates;
  const auto done = static_cast<int64_t>(source_.progress.step.work.updates.size());
  if (frequency <= 0 || done % frequency != 0) return {};
  settle();
  return save_state({source_.progress.counters.step, done}, TRY(source_.stateful.save()), Kind::kDue);
}

Result<> RunSaver::save_if_due() {
  const int64_t step = source_.progress.counters.step;
  const int64_t frequency = source_.run.config.trainer.save_freq;
  const bool is_last = step == source_.run.total_steps;
  const bool is_best = source_.progress.best.is_best(step);
  if (!is_last && !is_best && (frequency <= 0 || step % frequency != 0)) return {};
  return save(is_last ? Kind::kLast : Kind::kDue);
}

Result<> RunSaver::save_changed_step() {
  saved_step_ = -1;
  return source_.progress.best.is_best(source_.progress.counters.step) ? save(Kind::kDue) : Result<>();
}

// After the save, so that `best` always names a whole checkpoint. Until then the one before is kept.
Result<> RunSaver::mark_best(const Path& checkpoint) const {
  Env& env = source_.run.env;
  const Path run_dir = checkpoint.parent_path();
  TRY(write_file_atomic(env, run_dir / kBestFile, checkpoint.filename().string() + "\n"));
  for (const std::string& warning : apply_retention(env, run_dir, num_kept(source_.run.config), checkpoint))
    log_warn(warning);  // about the one that was the best before
  return {};
}

Result<> RunSaver::finish() { return saved_step_ == source_.progress.counters.step ? Result<>() : save(Kind::kLast); }

// Rewards and limits are judged on all rows by every rank. Any other error may be that of one rank, whose part of a
// shared state is then gone.
bool RunSaver::can_keep(const Error& why) const {
  if (source_.is_spread) return why.kind == ErrorKind::kReward;
  return why.kind != ErrorKind::kNumerics && source_.run.ranks.is_main();
}

void RunSaver::keep_finished_steps(const Error& why) {
  if (!before_step_ || !can_keep(why)) return;
  // The counters may be further: a step without updates (trainer.critic_warmup) can fail after it was counted.
  auto [step, state] = std::move(*before_step_);
  before_step_.reset();
  if (step == 0 || saved_step_ >= step) return;
  if (save_state({step, {}}, std::move(state), Kind::kKept).ok()) tell_kept(step);
}

void RunSaver::keep_last_step(const Error& why) {
  const int64_t step = source_.progress.counters.step;
  if (!can_keep(why)) return;
  if (save(Kind::kKept).ok()) tell_kept(step);
}

void RunSaver::tell_kept(int64_t step) const {
  if (saved_step_ == step)
    log_info(fmt::format("{} saved in {}",
                         step == 1 ? "the finished step is" : fmt::format("the {} finished steps are", step),
                         last_checkpoint_));
}

double RunSaver::take_seconds() { return std::exchange(seconds_, 0.0); }

Result<> RunSaver::save(Kind kind) {
  return save_state({source_.progress.counters.step, {}}, TRY(source_.stateful.save()), kind);
}

// Old checkpoints go behind it (trainer.max_actor_ckpt_to_keep).
CheckpointWriter RunSaver::writer() const {
  CheckpointWriterOptions options;
  options.keep_last = num_kept(source_.run.config);
  return {source_.run.env, source_.run.config.trainer.default_local_dir, options};
}

Result<std::string> RunSaver::tell_saved(Result<SavedCheckpoint> saved) const {
  const SavedCheckpoint done = TRY(std::move(saved));
  if (done.not_announced) return *done.not_announced;
  for (const std::string& warning : done.warnings) log_warn(warning);
  return done.path.string();
}

// The rows come first, so that a resume finds them.
Result<std::string> RunSaver::save_alone(const Result<CheckpointRequest>& request) {
  if (!request.ok()) return request.error();
  TRY(log_->sync());
  return tell_saved(writer().save(*request));
}

// Ranks that have the same part of split layers have the same numbers of it.
Result<> RunSaver::check_same_parts(const StateSnapshot& state, const Error& unless) const {
  const ModelPart* const part = source_.policy.model->model_part();
  if (part == nullptr) return {};
  const auto digest = [&] { return digest_of_own_part(source_, state); };
  const std::vector<std::string> all = TRY(on_every_rank(source_.run.ranks, kSaveStage, digest));
  return check_same(all, unless, static_cast<size_t>(part->ranks()->size()));
}

// A collective, also where a rank has no request.
Result<std::string> RunSaver::save_together(const Result<CheckpointRequest>& request, const PolicyPlan& plan) {
  Communicator& ranks = source_.run.ranks;
  // Each rank writes some of what all have, so that one with other numbers would spoil the checkpoint, and a good one would
  // be deleted for it.
  const auto digest = [&]() -> Result<std::string> {
    if (!request.ok()) return request.error();
    return digest_of_shared(source_, request->state);
  };
  const std::vector<std::string> digests = TRY(on_every_rank(ranks, kSaveStage, digest));
  const Error unless{ErrorKind::kRankFailure, "the weights or optimizer states", checkpoint_name(request->place),
                     kLeaveRankOut};
  TRY(check_same(digests, unless));
  TRY(check_same_parts(request->state, unless));  // all ranks have a request, or there were no digests
  CheckpointWriter writer = this->writer();
  const auto begin = [&]() -> Result<std::string> {
    if (!request.ok()) return request.error();
    TRY(log_->sync());
    return TRY(writer.begin(*request)).string();
  };
  const Path temporary = TRY(on_main_rank(ranks, kSaveStage, begin));
  const auto write = [&]() -> Result<std::string> {
    const auto written =
        request.ok() ? writer.write_part(temporary, *request, save_share(ranks)) : Result<WrittenPart>(request.error());
    TRY(plan.finish());
    return written_part_text(TRY(written));
  };
  const Result<std::vector<std::string>> written = on_every_rank(ranks, kSaveStage, write);
  const auto commit = [&]() -> Result<std::string> {
    if (!written.ok()) {
      writer.abandon(temporary);
      return written.error();
    }
    std::vector<WrittenPart> parts;
    for (const std::string& text : *written) parts.push_back(TRY(parse_written_part(text)));
    return tell_saved(writer.commit(temporary, *request, parts));
  };
  return on_main_rank(ranks, kSaveStage, commit);
}

namespace {

// What the run has learnt since the checkpoint before depends on it, and a full disk may be full for a moment.
Result<std::string> repeat_if_full(const std::function<Result<std::string>()>& save) {
  std::chrono::milliseconds wait(250);
  for (int64_t attempt = 1;; ++attempt, wait *= 4) {
    Result<std::string> saved = save();
    if (saved.ok() || saved.error().kind != ErrorKind::kDisk || attempt == RunSaver::kLastAttempts) return saved;
    log_warn(fmt::format("the last save failed and is tried again ({} of {}): {}", attempt + 1, RunSaver::kLastAttempts,
                         saved.error().to_string()));
    std::this_thread::sleep_for(wait);
  }
}

}  // namespace

Result<> RunSaver::save_state(const CheckpointPlace& place, StateSnapshot state, Kind kind) {
  const Stopwatch watch(source_.run.env);
  const bool is_together = saves_together(kind);
  const PolicyPlan plan = TRY(plan_policy(source_));
  const Result<CheckpointRequest> request = checkpoint_request(source_, plan, place, std::move(state));
  const auto save = [&] { return is_together ? save_together(request, plan) : save_alone(request); };
  Result<std::string> saved = kind == Kind::kDue ? save() : repeat_if_full(save);
  if (saved.ok() && !place.update && source_.progress.best.is_best(place.step)) {
    const auto mark = [&] { return mark_best(*saved); };
    const Result<> marked = is_together ? do_on_main_rank(source_.run.ranks, kSaveStage, mark) : mark();
    if (!marked.ok()) saved = marked.error();
  }
  if (!saved.ok() && saved.error().kind == ErrorKind::kRankFailure) return saved.error();
  if (!saved.ok()) return tell_failed(place, saved.error(), kind);
  if (num_failed_ > 0) log_warn("saving works again after " + counted(num_failed_, "failed save"));
  num_failed_ = 0;
  if (!place.update) saved_step_ = place.step;
  last_checkpoint_ = *saved;
  seconds_ += watch.elapsed_s();
  return {};
}

Result<> RunSaver::tell_failed(const CheckpointPlace& place, Error error, Kind kind) {
  ++num_failed_;
  std::string last_good = last_checkpoint_;
  if (last_good.empty()) {
    const auto found = find_newest_valid(source_.run.env, source_.run.config.trainer.default_local_dir);
    if (found.ok() && found->has_value()) last_good = (*found)->ref.path.string();
  }
  const bool has_one = !last_good.empty();
  last_good = has_one ? "the last good checkpoint is " + last_good : "the run has no checkpoint yet";
  error.what = fmt::format("the checkpoint {} could not be saved: {}", checkpoint_name(place), error.what);
  if (kind == Kind::kLast || (kind == Kind::kDue && num_failed_ >= kMaxFailedSaves)) {
    if (num_failed_ > 1) error.what = fmt::format("{} saves in a row failed; {}", num_failed_, error.what);
    error.what += "; " + last_good;
    error.next += fmt::format("{}start the same command again{}", error.next.empty() ? "" : "; then ",
                              has_one ? " to resume from it" : "");
    return error;
  }
  const std::string count = fmt::format("SAVE FAILED ({} in a row", num_failed_);
  if (kind == Kind::kKept) {
    log_error(fmt::format("{}): {}; {}", count, error.to_string(), last_good));
  } else {
    log_error(
        fmt::format("{}, the run stops after {}): {}; training continues and saves again when the next save is due; "
                    "{}",
                    count, kMaxFailedSaves, error.to_string(), last_good));
  }
  return {};
}

}  // namespace mortise
