// Writing checkpoints so that at every instant, power loss included, an old or a new one loads.
//
//   RUN/.tmp_NAME.XXXX/   NAME as in place.h; each file streamed, hashed and fsynced; manifest.json last;
//                         folders fsynced
//   read back             every entry is read again and compared with its digest
//   RUN/NAME/             by rename, then fsync of RUN: from here on it is safe
//   RUN/latest            "NAME\n", written atomically: the one a resume tries first
//   retention             only now may older ones go
//
// Several ranks write one checkpoint together: rank 0 makes the temporary folder, every rank writes its files there (what
// parts.h gives it of the state, and files of its own), syncs and reads them back, and rank 0 then writes the manifest of
// all and commits. If a rank fails, rank 0 removes the folder. All ranks must see this folder.
//
// An existing NAME (a damaged one, or a save repeated after a resume) is first renamed to .replaced_NAME, which readers
// still consider, and removed at the end.
// A failed save removes its temporary folder and leaves all earlier checkpoints as they were. Leftovers of killed
// processes are removed by the next save. Thread rule: one writer per run folder.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "checkpoint/parts.h"
#include "checkpoint/place.h"
#include "foundation/base/env.h"
#include "foundation/base/stateful.h"

namespace mortise {

// A further file of the checkpoint ("huggingface/model.safetensors"); `write` streams its bytes.
struct CheckpointFile {
  std::string path;
  std::function<Result<>(WritableFile&)> write;
  int rank = 0;  // the one that writes it, if several ranks write the checkpoint
};
// One with its bytes in memory.
CheckpointFile checkpoint_text_file(std::string path, std::string bytes);

struct CheckpointRequest {
  CheckpointPlace place;
  StateSnapshot state;  // becomes state.json and state.safetensors
  std::vector<CheckpointFile> files;
  std::map<std::string, std::string> info;
};

// The room that a save of `request` takes on the disk, in bytes. Writes nothing.
Result<uint64_t> measure_checkpoint(const CheckpointRequest& request);
// The same for several ranks: what this one would write, without digests, and the room for what all would.
Result<WrittenPart> measure_part(const CheckpointRequest& request, const SaveShare& share);
Result<uint64_t> measure_parts(const CheckpointRequest& request, std::span<const WrittenPart> parts);

struct CheckpointWriterOptions {
  int64_t keep_last = 0;  // newest checkpoints kept (those between steps); 0: all
  bool sync = true;       // false gives up the promise about power loss (tests, scratch disks)
};

struct SavedCheckpoint {
  Path path;
  uint64_t size_bytes = 0;
  std::vector<std::string> warnings;  // saved, but an old one could not be removed, ...
  // Why `latest` does not name it, although it is whole: a resume begins at the one before.
  std::optional<Error> not_announced;
};

class CheckpointWriter {
 public:
  CheckpointWriter(Env& env, Path run_dir, const CheckpointWriterOptions& options = {});
  Result<SavedCheckpoint> save(const CheckpointRequest& request);

  // The steps of a save by several ranks. `files` of each request names the files of all ranks, and each rank's `state` is
  // its own. Rank 0: makes the temporary folder.
  Result<Path> begin(const CheckpointRequest& request);
  // Every rank: what it wrote into that folder.
  Result<WrittenPart> write_part(const Path& temporary, const CheckpointRequest& request, const SaveShare& share);
  // Rank 0, with the parts of all ranks. Removes the folder if it fails.
  Result<SavedCheckpoint> commit(const Path& temporary, const CheckpointRequest& request,
                                 std::span<const WrittenPart> parts);
  // Rank 0, if a rank has failed.
  void abandon(const Path& temporary);

 private:
  Result<> publish(const Path& temporary, const CheckpointPlace& place, SavedCheckpoint& saved);

  Env* env_;
  Path run_dir_;
  CheckpointWriterOptions options_;
  std::vector<std::string> warnings_;  // from begin()
};

}  // namespace mortise
