// See set_aside.h.
#include "train/resume/set_aside.h"

#include <fmt/core.h>

#include <filesystem>

#include "foundation/base/folder_lock.h"
#include "foundation/base/log.h"
#include "foundation/base/rename_target.h"
#include "foundation/base/shown_text.h"

namespace mortise {

namespace {

constexpr const char* kRowFiles[] = {"metrics.jsonl", "updates.jsonl"};

// With links followed; as it is where that fails.
Path real_path(const Path& path) {
  std::error_code failed;
  const Path absolute = std::filesystem::absolute(path, failed).lexically_normal();
  Path real = std::filesystem::weakly_canonical(absolute, failed);
  if (failed) real = absolute;
  return real.has_filename() ? real : real.parent_path();  // "runs/a/"
}

bool is_in(const Path& path, const Path& folder) {
  const Path from_there = real_path(path).lexically_relative(real_path(folder));
  return !from_there.empty() && *from_there.begin() != "..";
}

// Is it the folder that relative paths of this run start from, or one around it?
bool holds_working_folder(const Path& folder) {
  std::error_code failed;
  const Path here = std::filesystem::current_path(failed);
  return !failed && is_in(here, folder);
}

// PREFIX1, PREFIX2 ...: the first that does not exist.
Path first_free(Env& env, const std::string& prefix) {
  Path path;
  for (int i = 1; path.empty() || env.exists(path); ++i) path = prefix + std::to_string(i);
  return path;
}

// The rows are in the way of none: a failed copy is no reason to stop.
void copy_rows(Env& env, const Path& from, const Path& to) {
  if (!env.exists(from)) return;
  const auto copied = [&]() -> Result<> {
    const MappedFile file = TRY(env.map_file(from));
    return write_whole(env, to, [&](WritableFile& out) { return out.append(file.bytes()); });
  }();
  if (!copied.ok()) log_warn("could not copy the rows that this resume drops: " + copied.error().to_string());
}

// The folder that the checkpoint lies in.
Path folder_around(const Path& checkpoint) { return real_path(checkpoint).parent_path(); }

// RUN_DIR gets the rows of `from`, up to the end. A resume drops those behind its checkpoint.
Result<> take_rows(Env& env, const Path& from, const Path& run_dir) {
  TRY(create_dirs_synced(env, run_dir));
  for (const char* name : kRowFiles) {
    if (!env.exists(from / name)) continue;
    const MappedFile file = TRY(env.map_file(from / name));
    TRY(write_whole(env, run_dir / name, [&](WritableFile& out) { return out.append(file.bytes()); }));
  }
  return {};
}

}  // namespace

CheckpointHome home_of(const Path& checkpoint, const Path& run_dir) {
  const Path folder = folder_around(checkpoint);
  if (folder == real_path(run_dir)) return CheckpointHome::kRunFolder;
  return is_in(folder, run_dir) ? CheckpointHome::kBelow : CheckpointHome::kElsewhere;
}

Result<> set_earlier_run_aside(Env& env, const Path& run_dir) {
  if (!env.exists(run_dir)) return {};
  const auto rows = env.info(run_dir / "metrics.jsonl");
  if ((!rows.ok() || rows->size_bytes == 0) && TRY(list_checkpoints(env, run_dir)).empty()) return {};
  const FolderLock lock = TRY(FolderLock::take(run_dir));  // not from under a run that still writes into it
  if (holds_working_folder(run_dir)) {
    return Error{
        ErrorKind::kConfig,
        "this folder holds an earlier run and cannot be renamed, because this run was started in it", run_dir.string(),
        "resume that run, move its files away, or name another trainer.default_local_dir, as in \"runs/first\""};
  }
  Path from = run_dir.lexically_normal();
  if (!from.has_filename()) from = from.parent_path();  // "runs/a/"
  const Path to = first_free(env, from.string() + ".before_");
  TRY(env.rename(from, to));
  log_info("the earlier run is now in " + to.string());
  return {};
}

Result<> set_later_checkpoints_aside(Env& env, const Path& run_dir, const CheckpointPlace& resumed) {
  std::vector<CheckpointRef> later;
  for (CheckpointRef& ref : TRY(list_checkpoints(env, run_dir))) {
    if (ref.place > resumed && verify_checkpoint(env, ref.path).ok()) later.push_back(std::move(ref));
  }
  if (later.empty()) return {};
  const FolderLock lock = TRY(FolderLock::take(run_dir));  // not from under a run that still writes into it
  const Path to = first_free(env, (run_dir / "abandoned_").string());
  TRY(create_dirs_synced(env, to));
  for (const char* name : kRowFiles) copy_rows(env, run_dir / name, to / name);
  for (const CheckpointRef& ref : later) TRY(env.rename(ref.path, to / ref.path.filename()));
  TRY(env.sync_dir(to));
  TRY(env.sync_dir(run_dir));
  log_warn(
      fmt::format("the run branches off after {}: {} of this folder, with copies of metrics.jsonl and "
                  "updates.jsonl, {} now in {}. Delete that folder if you do not need it.",
                  checkpoint_name(resumed), counted(static_cast<int64_t>(later.size()), "further checkpoint"),
                  later.size() == 1 ? "is" : "are", to.string()));
  return {};
}

Result<Path> return_to_branch(Env& env, const Path& run_dir, const Path& checkpoint, const CheckpointPlace& place) {
  const FolderLock lock = TRY(FolderLock::take(run_dir));
  const Path from = folder_around(checkpoint);
  const std::vector<CheckpointRef> left = TRY(list_checkpoints(env, run_dir));
  const Path to = first_free(env, (run_dir / "abandoned_").string());
  TRY(create_dirs_synced(env, to));
  for (const CheckpointRef& ref : left) TRY(env.rename(ref.path, to / ref.path.filename()));
  for (const char* name : kRowFiles) {
    if (env.exists(run_dir / name)) TRY(env.rename(run_dir / name, to / name));
  }
  TRY(env.sync_dir(to));
  TRY(take_rows(env, from, run_dir));
  Path resumed = checkpoint;
  if (from.filename().native().starts_with("abandoned_")) {
    resumed = run_dir / checkpoint_name(place);
    TRY(env.rename(checkpoint, resumed));
    TRY(env.sync_dir(from));
  }
  TRY(env.sync_dir(run_dir));
  log_warn(fmt::format(
      "the run returns to the branch of {}: metrics.jsonl, updates.jsonl and checkpoints ({}) of the branch that it leaves "
      "are now in {}. Delete that folder if you do not need it.",
      resumed.string(), left.size(), to.string()));
  return resumed;
}

Result<> begin_from_other_run(Env& env, const Path& run_dir, const Path& checkpoint) {
  TRY(set_earlier_run_aside(env, run_dir));
  return take_rows(env, folder_around(checkpoint), run_dir);
}

}  // namespace mortise
