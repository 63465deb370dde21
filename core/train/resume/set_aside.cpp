// See set_aside.h.
#include "train/resume/set_aside.h"

#include <fmt/core.h>

#include <filesystem>

#include "foundation/base/folder_lock.h"
#include "foundation/base/log.h"
#include "foundation/base/rename_target.h"

namespace mortise {

namespace {

// Is it the folder that relative paths of this run start from, or one around it?
bool holds_working_folder(const Path& folder) {
  std::error_code failed;
  const Path here = std::filesystem::current_path(failed);
  const Path from_there = here.lexically_relative(std::filesystem::weakly_canonical(folder, failed));
  return !failed && !from_there.empty() && *from_there.begin() != "..";
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

}  // namespace

Result<> set_earlier_run_aside(Env& env, const Path& run_dir) {
  if (!env.exists(run_dir)) return {};
  const auto rows = env.info(run_dir / "metrics.jsonl");
  if ((!rows.ok() || rows->size_bytes == 0) && TRY(list_checkpoints(env, run_dir)).empty()) return {};
  const FolderLock lock = TRY(FolderLock::take(run_dir));  // not from under a run that still writes into it
  if (holds_working_folder(run_dir)) {
    return Error{
        ErrorKind::kConfig,
        "an earlier run is in this folder, which cannot be renamed to set it aside: this run was started in it",
        run_dir.string(),
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
  for (const char* name : {"metrics.jsonl", "updates.jsonl"}) copy_rows(env, run_dir / name, to / name);
  for (const CheckpointRef& ref : later) TRY(env.rename(ref.path, to / ref.path.filename()));
  TRY(env.sync_dir(to));
  TRY(env.sync_dir(run_dir));
  log_warn(fmt::format(
      "the run takes another course after {}: {} further checkpoint{} of this folder, with copies of metrics.jsonl and "
      "updates.jsonl, {} now in {}. Delete that folder if you do not need it.",
      checkpoint_name(resumed), later.size(), later.size() == 1 ? "" : "s", later.size() == 1 ? "is" : "are",
      to.string()));
  return {};
}

}  // namespace mortise
