// Is there room on the disk for the next checkpoints? A save is whole on the disk before retention removes what it
// supersedes, so a run needs more room at its peak than the checkpoints it keeps.
// Thread rule: as for a writer, one per run folder.
#pragma once

#include <cstdint>

#include "checkpoint/place.h"
#include "foundation/base/env.h"

namespace mortise {

// The bytes that a file of this size takes on the disk: whole blocks of 4 KiB.
[[nodiscard]] constexpr uint64_t disk_blocks(uint64_t size_bytes) {
  constexpr uint64_t kBlock = 4096;
  return (size_bytes + kBlock - 1) / kBlock * kBlock;
}

// What a run will save, and how much of it remains on the disk.
struct SavePlan {
  CheckpointPlace place = {};     // done so far; every save is a step further
  int64_t num_saves = 2;          // to make room for
  uint64_t checkpoint_bytes = 0;  // each checkpoint's size
  int64_t keep_last = 0;          // as CheckpointWriterOptions
  bool inside_step = false;       // the saves are inside steps: none of them replaces one between steps
  bool starts_over = false;       // the folder will be moved aside: it stays on the disk, and nothing deletes it
};

struct SaveRoom {
  uint64_t needed_bytes = 0;    // free space without which one of the saves would fail
  uint64_t free_bytes = 0;      // now
  uint64_t existing_bytes = 0;  // what the checkpoints in the run's folder take now
  int64_t num_existing = 0;

  [[nodiscard]] bool is_enough() const { return free_bytes >= needed_bytes; }
};

// For saves into `run_dir` as it is now, what retention and the removal of leftovers free on the way included.
// A folder that does not exist yet is empty.
Result<SaveRoom> measure_room(Env& env, const Path& run_dir, const SavePlan& plan);

// The path, or where it does not exist yet, the nearest folder above it.
Path nearest_folder(Env& env, const Path& path);

// Bytes that a user can still write at this path or, where it does not exist yet, at the nearest folder above it.
Result<uint64_t> free_bytes_for(Env& env, const Path& path);

}  // namespace mortise
