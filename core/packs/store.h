// The store: packs that were installed, by the hash of their archive, several versions side by side.
//
//   objects/<SHA-256 of the archive>/   pack.mpack, pack.mpack.minisig (if signed), <id>.so (the build of this machine),
//                                       origin.json; read-only
//   packs/<id>/<version>                one line: the name of its object. A run finds packs here.
// An object is made in a temporary folder, synced and renamed, and its line in packs/ comes last: a pack is installed or
// it is not, also after a loss of power. Cost: a few file operations. Threading: one process at a time writes (a lock);
// readers need none.
#pragma once

#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "foundation/base/env.h"
#include "foundation/base/folder_lock.h"
#include "foundation/base/result.h"
#include "packs/pack_archive.h"
#include "packs/trust.h"

namespace mortise {

struct InstalledPack {
  std::string id, version;
  std::string sha256;                   // hash of the archive
  std::string library_sha256;           // hash of the build that is installed
  std::string source;                   // where it came from: a path or a URL
  SignerSet signed_by;                  // the keys that signed it, and how many its publisher needs; no keys: unsigned
  std::vector<std::string> other_keys;  // ids of the keys whose signatures did not count when it was installed
  std::string platform;                 // platform of the installed build, as PackBuild::platform()
  int64_t installed_at = 0;             // Unix seconds
  Path object, library, archive;
};

// An entry of the store that cannot be read or changed. Version "": all of the id.
struct DamagedEntry {
  std::string id, version;
  Error error;
};

struct RemovedPacks {
  std::vector<InstalledPack> packs;
  std::vector<DamagedEntry> damaged;  // not removed, or damaged next to what was removed
};

struct InstallRequest {
  const PackArchive* archive = nullptr;
  const PackBuild* build = nullptr;  // one of archive->description
  std::string signature;             // text of the .minisig; "" without
  SignerSet signed_by;               // the keys that count; no keys: unsigned, or by keys that are not trusted
  std::string source;
};

class PackStore {
 public:
  PackStore(Env& env, Path root) : env_(env), root_(std::move(root)) {}

  // Sorted by id, then from the newest version to the oldest. Damaged entries go to `damaged`; without it, the first is
  // an error.
  [[nodiscard]] Result<std::vector<InstalledPack>> list(std::vector<DamagedEntry>* damaged = nullptr) const;
  [[nodiscard]] Result<std::optional<InstalledPack>> find(std::string_view id, std::string_view version) const;
  // Another archive under an installed id and version is refused: versions do not change. The same one again repairs
  // what is damaged, and adds a signature that was missing.
  Result<InstalledPack> install(const InstallRequest& request);
  // Version "": all. Objects that nothing names any more are deleted, unless an entry is damaged.
  Result<RemovedPacks> remove(std::string_view id, std::string_view version);
  // Deletes objects that no entry names and what killed installs left. Returns their number.
  Result<size_t> collect_garbage();
  [[nodiscard]] const Path& root() const { return root_; }

 private:
  [[nodiscard]] Result<InstalledPack> read_entry(const std::string& id, const std::string& version) const;
  [[nodiscard]] bool is_sound(const Path& object, const InstallRequest& request) const;
  Result<> write_object(const InstallRequest& request, const Path& object);
  Result<FolderLock> lock();
  Result<std::set<std::string>> objects_in_use(std::vector<DamagedEntry>& damaged);
  Result<size_t> collect_locked(std::vector<DamagedEntry>& damaged);
  Env& env_;
  Path root_;
};

}  // namespace mortise
