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

std::vector<std::string> apply_retention(Env& env, const Path& run_dir, int64_t keep_last, const Path& just_saved) {
  Result<std::vector<CheckpointRef>> all = list_checkpoints(env, run_dir);
  if (!all.ok()) return {all.error().to_string()};
  const auto saved =
      std::find_if(all->begin(), all->end(), [&](const CheckpointRef& ref) { return ref.path == just_saved; });
  if (saved == all->end()) return {"old checkpoints are kept: " + just_saved.string() + " is not among them"};
  const bool inside_step = saved->place.update.has_value();
  // Newest first; turned so that just_saved leads and later steps come behind all earlier ones.
  std::rotate(all->begin(), saved, all->end());
  std::vector<std::string> warnings;
  int64_t num_kept = 0;
  for (const CheckpointRef& ref : *all) {
    const bool keep =
        ref.path == just_saved || (!ref.place.update && (inside_step || keep_last <= 0 || num_kept < keep_last));
    if (keep) {
      ++num_kept;
      continue;
    }
    const Result<> removed = remove_checkpoint(env, ref.path);
    if (!removed.ok()) warnings.push_back("could not delete an old checkpoint: " + removed.error().to_string());
  }
  return warnings;
}

std::vector<std::string> remove_leftovers(Env& env, const Path& run_dir) {
  std::vector<std::string> warnings;
  Result<std::vector<std::string>> names = env.list_dir(run_dir);
  if (!names.ok()) return {names.error().to_string()};
  for (const std::string& name : *names) {
    constexpr std::string_view kReplaced = ".replaced_";
    bool remove = is_temporary_name(name) || name.starts_with(kDeleting);
    if (name.starts_with(kReplaced)) remove = verify_checkpoint(env, run_dir / name.substr(kReplaced.size())).ok();
    if (!remove) continue;
    if (const Result<> removed = remove_tree(env, run_dir / name); !removed.ok())
      warnings.push_back("could not remove a leftover: " + removed.error().to_string());
  }
  return warnings;
}

}  // namespace mortise
