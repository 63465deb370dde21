// See retention.h.
#include "checkpoint/retention.h"

#include <algorithm>

#include "checkpoint/reader.h"
#include "foundation/base/rename_target.h"

namespace mortise {
namespace {

constexpr std::string_view kDeleting = ".deleting_";

}  // namespace

Result<> remove_checkpoint(Env& env, const Path& path) {
  const Path doomed = path.parent_path() / (std::string(kDeleting) + path.filename().string());
  TRY(remove_tree(env, doomed));
  TRY(env.rename(path, doomed));
  return remove_tree(env, doomed);
}

std::vector<CheckpointRef> superseded_checkpoints(std::vector<CheckpointRef> all, int64_t keep_last,
                                                  const Path& just_saved, const Path& best) {
  std::erase_if(all, [&](const CheckpointRef& ref) { return ref.path == best && ref.path != just_saved; });
  std::sort(all.begin(), all.end(), is_further);
  const auto saved =
      std::find_if(all.begin(), all.end(), [&](const CheckpointRef& ref) { return ref.path == just_saved; });
  if (saved == all.end()) return {};
  const bool inside_step = saved->place.update.has_value();
  // Newest first, but rotated: just_saved leads, and later steps come after all earlier ones.
  std::rotate(all.begin(), saved, all.end());
  std::vector<CheckpointRef> gone;
  int64_t num_kept = 0;
  for (CheckpointRef& ref : all) {
    const bool keep =
        ref.path == just_saved || (!ref.place.update && (inside_step || keep_last <= 0 || num_kept < keep_last));
    if (keep)
      ++num_kept;
    else
      gone.push_back(std::move(ref));
  }
  return gone;
}

std::vector<std::string> apply_retention(Env& env, const Path& run_dir, int64_t keep_last, const Path& just_saved) {
  Result<std::vector<CheckpointRef>> all = list_checkpoints(env, run_dir);
  if (!all.ok()) return {all.error().to_string()};
  std::vector<std::string> warnings;
  const Path best = best_checkpoint(env, run_dir);
  for (const CheckpointRef& ref : superseded_checkpoints(*std::move(all), keep_last, just_saved, best)) {
    const Result<> removed = remove_checkpoint(env, ref.path);
    if (!removed.ok()) warnings.push_back("could not delete an old checkpoint: " + removed.error().to_string());
  }
  return warnings;
}

Result<std::vector<Path>> list_leftovers(Env& env, const Path& run_dir) {
  std::vector<Path> leftovers;
  for (const std::string& name : TRY(env.list_dir(run_dir))) {
    constexpr std::string_view kReplacedPrefix = ".replaced_";
    bool is_leftover = is_temporary_name(name) || name.starts_with(kDeleting);
    if (name.starts_with(kReplacedPrefix))
      is_leftover = verify_checkpoint(env, run_dir / name.substr(kReplacedPrefix.size())).ok();
    if (is_leftover) leftovers.push_back(run_dir / name);
  }
  return leftovers;
}

std::vector<std::string> remove_leftovers(Env& env, const Path& run_dir) {
  std::vector<std::string> warnings;
  const Result<std::vector<Path>> leftovers = list_leftovers(env, run_dir);
  if (!leftovers.ok()) return {leftovers.error().to_string()};
  for (const Path& path : *leftovers) {
    if (const Result<> removed = remove_tree(env, path); !removed.ok())
      warnings.push_back("could not remove a leftover: " + removed.error().to_string());
  }
  return warnings;
}

}  // namespace mortise
