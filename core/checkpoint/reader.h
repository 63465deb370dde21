// Finding, checking and loading checkpoints. A damaged one is never partly loaded. The error names its bad entry, and
// find_newest_valid warns and continues with the one before it.
// Thread rule: functions only read the file system; a Checkpoint is read-only and may be shared.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "checkpoint/manifest.h"
#include "checkpoint/parts.h"
#include "foundation/base/env.h"
#include "foundation/base/stateful.h"
#include "foundation/formats/safetensors.h"

namespace mortise {

inline constexpr std::string_view kLatestFile = "latest";
inline constexpr std::string_view kBestFile = "best";  // names the checkpoint of the best validation, if there is one

struct CheckpointRef {
  CheckpointPlace place;
  Path path;
};

// A scalar of a checkpoint's state as people read it: "true", "-5", "0.1", or the text itself.
[[nodiscard]] std::string state_scalar_text(const StateScalar& scalar);

// The order of list_checkpoints: the furthest in the run first, a replaced one behind the one that took its place.
bool is_further(const CheckpointRef& a, const CheckpointRef& b);

// The checkpoint folder of this name in a run's folder, unchecked; nothing for any other name.
std::optional<CheckpointRef> checkpoint_ref(const Path& run_dir, const std::string& name);

// Every checkpoint folder in a run's folder, unchecked, the furthest in the run first. A missing run folder has none.
Result<std::vector<CheckpointRef>> list_checkpoints(Env& env, const Path& run_dir);

// The checkpoint that RUN/best names; empty if there is no such file. Unchecked.
Path best_checkpoint(Env& env, const Path& run_dir);

// Reads one entry and compares size and SHA-256.
Result<> verify_entry(Env& env, const Path& checkpoint_dir, const ManifestEntry& entry);

// The manifest alone. No entry is read.
Result<Manifest> read_manifest(Env& env, const Path& checkpoint_dir);

// Verifies the entries of one of several ranks, which have about the same number of bytes. Each entry is in one share.
Result<> verify_share(Env& env, const Path& checkpoint_dir, const Manifest& manifest, const SaveShare& share);

// Reads every entry and compares size and SHA-256; the Error names an entry that is missing or changed.
Result<Manifest> verify_checkpoint(Env& env, const Path& checkpoint_dir);

struct FoundCheckpoint {
  CheckpointRef ref;
  Manifest manifest;
  std::vector<std::string> warnings;  // one per newer checkpoint that was refused, with the reason
};
// The checkpoint that RUN/latest names if it is complete, else the newest complete one. (A step newer than `latest`
// belongs to a part of the run that a resume from an earlier step left, or was saved just before a crash. Skipping
// either is fine.) Nothing if there is none; an Error if there are some and all are damaged.
Result<std::optional<FoundCheckpoint>> find_newest_valid(Env& env, const Path& run_dir);
// Its two halves, for ranks that verify together. The checkpoints in the order in which they are tried, unchecked:
Result<std::vector<CheckpointRef>> resume_candidates(Env& env, const Path& run_dir);
// The first of them that `verify` accepts. Errors of the kinds kRankFailure and kConfig say nothing about a checkpoint:
// a rank has failed, or sees another disk. They are returned.
using VerifyCheckpoint = std::function<Result<Manifest>(const Path& checkpoint_dir)>;
Result<std::optional<FoundCheckpoint>> first_valid(const Path& run_dir, const std::vector<CheckpointRef>& candidates,
                                                   const VerifyCheckpoint& verify);

// An opened checkpoint: verified, state parsed, tensors mapped.
class Checkpoint {
 public:
  static Result<Checkpoint> open(Env& env, const Path& checkpoint_dir);
  // The same of a checkpoint whose entries have been verified against this manifest.
  static Result<Checkpoint> open_verified(Env& env, const Path& checkpoint_dir, Manifest manifest);

  [[nodiscard]] const Manifest& manifest() const { return manifest_; }
  [[nodiscard]] const Path& path() const { return path_; }
  // Tensor views borrow from this object. A tensor that several ranks wrote in pieces has a source instead of bytes.
  [[nodiscard]] const StateSnapshot& state() const { return state_; }
  // state() into the objects, with all of stateful.h's refusals. `dropped`: objects of the state that are left out.
  Result<> load_into(StatefulRegistry& registry, const std::set<std::string>& dropped = {}) const;
  // The full path of an entry; an Error for one that is not in the manifest.
  Result<Path> entry(std::string_view path) const;

 private:
  Path path_;
  Manifest manifest_;
  SafetensorsFile tensors_;
  StateShards shards_;  // the files of several ranks
  StateSnapshot state_;
};

}  // namespace mortise
