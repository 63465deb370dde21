// Writing checkpoints so that at every instant, power loss included, an old or a new one loads.
//
//   RUN/.tmp_NAME.XXXX/   NAME as in place.h; each file streamed, hashed and fsynced; manifest.json last;
//                         folders fsynced
//   read back             every entry is read again and compared with its digest
//   RUN/NAME/             by rename, then fsync of RUN: from here on it is safe
//   RUN/latest            "NAME\n", written atomically: the one a resume tries first
//   retention             only now may older ones go
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

#include "checkpoint/place.h"
#include "foundation/base/env.h"
#include "foundation/base/stateful.h"

namespace mortise {

// A further file of the checkpoint ("huggingface/model.safetensors"); `write` streams its bytes.
struct CheckpointFile {
  std::string path;
  std::function<Result<>(WritableFile&)> write;
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

 private:
  Env* env_;
  Path run_dir_;
  CheckpointWriterOptions options_;
};

}  // namespace mortise
