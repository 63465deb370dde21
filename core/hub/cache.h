// The hub's cache on disk, in the layout of huggingface_hub, so that both use the same files:
//
//   models--Qwen--Qwen2.5-0.5B/blobs/HASH            the bytes of a file, named by its hash
//   models--Qwen--Qwen2.5-0.5B/snapshots/COMMIT/...  links to blobs, under the names of the repository
//   models--Qwen--Qwen2.5-0.5B/refs/main             the commit that a branch or tag was when it was last asked for
//   .locks/models--Qwen--Qwen2.5-0.5B/HASH.lock      held while a blob is written
// Threading: any thread; processes exclude each other by the locks.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "foundation/base/env.h"
#include "foundation/base/folder_lock.h"
#include "foundation/base/result.h"
#include "hub/hub_name.h"

namespace mortise {

class HubCache {
 public:
  HubCache(Env& env, const Path& root, const HubName& name);

  // The commit of a branch or tag; a commit is itself. Nothing if it was never asked for.
  [[nodiscard]] std::optional<std::string> commit_of(const std::string& revision) const;
  Result<> remember(const std::string& revision, const std::string& commit);

  [[nodiscard]] Path snapshot(const std::string& commit) const { return folder_ / "snapshots" / commit; }
  [[nodiscard]] Path blob(const std::string& etag) const { return folder_ / "blobs" / etag; }
  // Where a blob is written before it is whole and checked.
  [[nodiscard]] Path unfinished(const std::string& etag) const { return folder_ / "blobs" / (etag + ".incomplete"); }
  // The files of a snapshot that are here, relative to it, sorted.
  [[nodiscard]] std::vector<std::string> files_of(const std::string& commit) const;

  // Waits until no other process writes this blob.
  Result<FolderLock> lock_blob(const std::string& etag);
  // Makes the snapshot's link to a blob that is here.
  Result<> link(const std::string& commit, const std::string& path, const std::string& etag);
  Result<> make_folders();

 private:
  Env& env_;
  Path root_;
  std::string repo_;  // "models--Qwen--Qwen2.5-0.5B"
  Path folder_;
};

// kind kData if the bytes are not those that the etag names: a SHA-256, or Git's id of a blob (a SHA-1).
Result<> check_blob(Env& env, const Path& file, const std::string& etag);

}  // namespace mortise
