// See room.h. Simulates the next saves on a list of folders and sizes.
#include "checkpoint/room.h"

#include <algorithm>
#include <map>
#include <string>
#include <vector>

#include "checkpoint/reader.h"
#include "checkpoint/retention.h"

namespace mortise {
namespace {

// Links are not followed: removing a checkpoint removes only the link.
Result<uint64_t> tree_bytes(Env& env, const Path& path) {
  std::error_code ignored;
  if (std::filesystem::is_symlink(path, ignored)) return uint64_t{0};
  const FileInfo info = TRY(env.info(path));
  if (!info.is_directory) return disk_blocks(info.size_bytes);
  uint64_t total = disk_blocks(1);
  for (const std::string& name : TRY(env.list_dir(path))) total += TRY(tree_bytes(env, path / name));
  return total;
}

}  // namespace

Path nearest_folder(Env& env, const Path& path) {
  std::error_code failed;
  Path at = std::filesystem::absolute(path, failed).lexically_normal();
  if (failed) at = path;
  while (!env.exists(at) && at.has_relative_path()) at = at.parent_path();
  return at;
}

Result<uint64_t> free_bytes_for(Env& env, const Path& path) { return env.free_bytes(nearest_folder(env, path)); }

Result<SaveRoom> measure_room(Env& env, const Path& run_dir, const SavePlan& plan) {
  SaveRoom room;
  room.free_bytes = TRY(free_bytes_for(env, run_dir));
  std::vector<CheckpointRef> refs = TRY(list_checkpoints(env, run_dir));
  std::map<Path, uint64_t> bytes_of;
  for (const CheckpointRef& ref : refs) {
    bytes_of[ref.path] = TRY(tree_bytes(env, ref.path));
    room.existing_bytes += bytes_of[ref.path];
  }
  room.num_existing = static_cast<int64_t>(refs.size());

  int64_t used = 0, peak = 0;  // bytes more than now
  if (plan.starts_over) {
    refs.clear();
  } else if (env.exists(run_dir)) {
    for (const Path& leftover : TRY(list_leftovers(env, run_dir))) {
      used -= static_cast<int64_t>(TRY(tree_bytes(env, leftover)));
      std::erase_if(refs, [&](const CheckpointRef& ref) { return ref.path == leftover; });
    }
  }
  const Path best = plan.starts_over ? Path() : best_checkpoint(env, run_dir);
  for (int64_t i = 1; i <= plan.num_saves; ++i) {
    CheckpointPlace place{plan.place.step + i, {}};
    if (plan.inside_step) place = {plan.place.step, plan.place.update.value_or(-1) + i};
    const CheckpointRef saved{place, run_dir / checkpoint_name(place)};
    used += static_cast<int64_t>(plan.checkpoint_bytes);
    peak = std::max(peak, used);
    // One of the same name is replaced.
    std::vector<CheckpointRef> gone;
    for (const CheckpointRef& ref : refs) {
      if (ref.place == place) gone.push_back(ref);
    }
    std::erase_if(refs, [&](const CheckpointRef& ref) { return ref.place == place; });
    for (const CheckpointRef& ref : gone) used -= static_cast<int64_t>(bytes_of[ref.path]);
    refs.push_back(saved);
    bytes_of[saved.path] = plan.checkpoint_bytes;
    for (const CheckpointRef& ref : superseded_checkpoints(refs, plan.keep_last, saved.path, best)) {
      used -= static_cast<int64_t>(bytes_of[ref.path]);
      std::erase_if(refs, [&](const CheckpointRef& other) { return other.path == ref.path; });
    }
  }
  room.needed_bytes = static_cast<uint64_t>(peak);
  return room;
}

}  // namespace mortise
