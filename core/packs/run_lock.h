// mortise.lock of `mortise pack lock`: the packs that a run may use, by the hash of what is loaded.
//
//   {"packs": [{"id", "version", "sha256", "archive_sha256", "source"}], "uses": [{"kind", "name", "pack", ...}]}
// It is the form of a run's own mortise.lock (core/train/resume/pack_lock.h), with where to get each pack. Unknown
// members are left alone. Threading: values.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "foundation/base/env.h"
#include "foundation/base/result.h"

namespace mortise {

struct LockedPack {
  std::string id, version;
  std::string sha256;                  // hash of the shared object
  std::string archive_sha256, source;  // for an installed pack
};

struct RunLock {
  std::string path;
  std::vector<LockedPack> packs;
  // Null where the lock has no such pack.
  [[nodiscard]] const LockedPack* find(std::string_view id, std::string_view sha256) const;
};

Result<RunLock> read_run_lock(Env& env, const Path& path);

// "acme.match 1.0.0 (1a2b3c4d5e6f), from https://...": what to install, for messages.
[[nodiscard]] std::string how_to_get(const LockedPack& pack);

}  // namespace mortise
