// Adds, lists and removes the objects of the store, under its lock.
#include "packs/store.h"

#include <fmt/core.h>

#include <algorithm>
#include <system_error>

#include "foundation/base/rename_target.h"
#include "foundation/base/text.h"
#include "foundation/formats/json.h"
#include "foundation/formats/sha256.h"
#include "packs/json_text.h"
#include "packs/minisign.h"
#include "packs/rules.h"
#include "packs/wait_lock.h"
#include "plugin/host/installed.h"
#include "plugin/pack/note.h"
#include "plugin/pack/pack_file.h"
#include "plugin/pack/semver.h"

namespace mortise {
namespace {

namespace fs = std::filesystem;

constexpr const char* kArchiveName = "pack.mpack";
constexpr const char* kOriginName = "origin.json";
constexpr uint64_t kMaxOriginBytes = 64 * 1024;

// Rights are a guard against mistakes, not a part of what is promised: a file system without them is fine.
void set_rights(const Path& path, fs::perms rights) {
  std::error_code ignored;
  fs::permissions(path, rights, ignored);
}

void make_read_only(const Path& object) {
  constexpr auto kRead = fs::perms::owner_read | fs::perms::group_read | fs::perms::others_read;
  constexpr auto kEnter = fs::perms::owner_exec | fs::perms::group_exec | fs::perms::others_exec;
  std::error_code failed;
  for (fs::directory_iterator it(object, failed); !failed && it != fs::directory_iterator(); it.increment(failed))
    set_rights(it->path(), kRead);
  set_rights(object, kRead | kEnter);
}

Result<> remove_object(Env& env, const Path& object) {
  std::error_code ignored;
  if (!fs::is_symlink(object, ignored)) set_rights(object, fs::perms::owner_all);  // never of what a link names
  return remove_tree(env, object);
}

// Nothing if they are damaged.
std::optional<SignerSet> signers_of(const Json& origin) {
  SignerSet set;
  const Json *keys = json_find(origin, "keys"), *threshold = json_find(origin, "threshold");
  if (keys == nullptr || !keys->is_array() || threshold == nullptr || !threshold->is_number_unsigned())
    return std::nullopt;
  for (const Json& text : *keys) {
    const auto key = parse_public_key(text.is_string() ? text.get<std::string>() : std::string(), "");
    if (!key.ok()) return std::nullopt;
    set.keys.push_back(*key);
  }
  set.threshold = threshold->get<uint32_t>();
  return set;
}

// The ids of keys that signed and are not in `counted`. A later trust or revocation looks at them again.
Result<Json> other_key_ids(const std::string& signature, const SignerSet& counted, std::string_view where) {
  Json ids = Json::array();
  if (signature.empty()) return ids;
  for (const FileSignature& one : TRY(parse_signatures(signature, where))) {
    const bool counts = std::any_of(counted.keys.begin(), counted.keys.end(),
                                    [&](const SigningPublicKey& key) { return key.id == one.key_id; });
    if (!counts) ids.push_back(key_id_text(one.key_id));
  }
  return ids;
}

bool newest_first(const InstalledPack& a, const InstalledPack& b) {
  if (a.id != b.id) return a.id < b.id;
  const auto va = SemVer::parse(a.version), vb = SemVer::parse(b.version);
  if (!va || !vb) return a.version < b.version;
  const auto order = compare(*va, *vb);
  return order == 0 ? a.version < b.version : order > 0;
}

}  // namespace

Result<FolderLock> PackStore::lock() {
  TRY(create_dirs_synced(env_, root_));
  return wait_for_folder(root_, "the store");
}

Result<InstalledPack> PackStore::read_entry(const std::string& id, const std::string& version) const {
  InstalledPack pack;
  pack.id = id;
  pack.version = version;
  const Path entry = root_ / "packs" / id / version;
  const auto damaged = [&](std::string what) {
    return Error{ErrorKind::kPlugin, "the store is damaged: " + std::move(what), entry.string(),
                 fmt::format("run `mortise pack remove {}@{}` and install it again", id, version)};
  };
  pack.sha256 = TRY(read_store_entry(env_, entry));
  pack.object = root_ / "objects" / pack.sha256;
  pack.library = pack.object / (id + ".so");
  pack.archive = pack.object / kArchiveName;
  const auto text = env_.read_file(pack.object / kOriginName, kMaxOriginBytes);
  if (!text.ok()) return damaged(text.error().what);
  const Json origin = TRY(parse_json(*text, (pack.object / kOriginName).string(), {.error_kind = ErrorKind::kPlugin}));
  pack.source = text_or_empty(origin, "source");
  const auto signers = signers_of(origin);
  if (!signers) return damaged("nobody can tell who signed it");
  pack.signed_by = *signers;
  pack.library_sha256 = text_or_empty(origin, "library_sha256");
  pack.platform = text_or_empty(origin, "platform");
  if (const Json* others = json_find(origin, "other_keys"); others != nullptr && others->is_array())
    for (const Json& key : *others)
      if (key.is_string()) pack.other_keys.push_back(key.get<std::string>());
  if (const Json* at = json_find(origin, "installed_at"); at != nullptr && at->is_number_integer())
    pack.installed_at = at->get<int64_t>();
  if (text_or_empty(origin, "id") != id || text_or_empty(origin, "version") != version)
    return damaged("the object is of another pack");
  return pack;
}

Result<std::vector<InstalledPack>> PackStore::list(std::vector<DamagedEntry>* damaged) const {
  std::vector<InstalledPack> out;
  const Path packs = root_ / "packs";
  if (!env_.exists(packs)) return out;
  const auto keep = [&](const std::string& id, const std::string& version, Error error) -> Result<> {
    if (damaged == nullptr) return error;
    damaged->push_back({id, version, std::move(error)});
    return {};
  };
  for (const std::string& id : TRY(env_.list_dir(packs))) {
    if (!is_pack_id(id)) continue;
    auto versions = env_.list_dir(packs / id);
    if (!versions.ok()) {
      TRY(keep(id, "", std::move(versions).error()));
      continue;
    }
    for (const std::string& version : *versions) {
      if (is_temporary_name(version)) continue;
      auto pack = read_entry(id, version);
      if (pack.ok()) {
        out.push_back(*std::move(pack));
      } else {
        TRY(keep(id, version, std::move(pack).error()));
      }
    }
  }
  std::sort(out.begin(), out.end(), newest_first);
  return out;
}

Result<std::optional<InstalledPack>> PackStore::find(std::string_view id, std::string_view version) const {
  const std::string pack(id), number(version);
  if (!is_pack_id(id) || !SemVer::parse(version) || !env_.exists(root_ / "packs" / pack / number))
    return std::optional<InstalledPack>();
  return std::optional(TRY(read_entry(pack, number)));
}

Result<> PackStore::write_object(const InstallRequest& request, const Path& object) {
  const PackArchive& archive = *request.archive;
  const PackDescription& pack = archive.description;
  const Path temporary = temporary_beside(env_, object);
  const auto all = [&]() -> Result<> {
    TRY(env_.create_dirs(temporary));
    TRY(write_file(env_, temporary / kArchiveName, archive.bytes));
    if (!request.signature.empty())
      TRY(write_file(env_, temporary / (std::string(kArchiveName) + ".minisig"), request.signature));
    const auto builds = TRY(archive.extract([&](std::string_view path) { return path == request.build->file; }));
    if (builds.size() != 1)
      return Error{ErrorKind::kInternal, "the build has left the archive", archive.path, "report this"};
    const Path library = temporary / (pack.id + ".so");
    TRY(write_file(env_, library, builds[0].bytes));
    const Json others = TRY(other_key_ids(request.signature, request.signed_by, archive.path));
    Json origin = {{"id", pack.id},
                   {"version", pack.version},
                   {"source", request.source},
                   {"keys", Json::array()},
                   {"threshold", request.signed_by.threshold},
                   {"other_keys", others},
                   {"library_sha256", request.build->sha256},
                   {"platform", request.build->platform()},
                   {"installed_at", env_.wall_time_ns() / 1'000'000'000}};
    for (const SigningPublicKey& key : request.signed_by.keys) origin["keys"].push_back(key.text());
    TRY(write_file(env_, temporary / kOriginName, dump_json(origin, 2) + "\n"));
    TRY(env_.sync_dir(temporary));
    make_read_only(temporary);
    return env_.rename(temporary, object);
  };
  Result<> done = all();
  if (!done.ok()) {
    (void)remove_object(env_, temporary);
    return done;
  }
  return env_.sync_dir(object.parent_path());
}

bool PackStore::is_sound(const Path& object, const InstallRequest& request) const {
  const PackDescription& pack = request.archive->description;
  if (!request.signature.empty()) {  // after a rotation the same archive comes with another signature
    const auto signature = env_.read_file(object / (std::string(kArchiveName) + ".minisig"), kMaxSignatureFileBytes);
    if (!signature.ok() || *signature != request.signature) return false;
  }
  const auto archive = sha256_file_hex(env_, object / kArchiveName);
  const auto library = sha256_file_hex(env_, object / (pack.id + ".so"));
  return archive.ok() && *archive == request.archive->sha256 && library.ok() && *library == request.build->sha256;
}

Result<InstalledPack> PackStore::install(const InstallRequest& request) {
  const PackDescription& pack = request.archive->description;
  const std::string& hash = request.archive->sha256;
  const FolderLock held = TRY(lock());
  const Path entry = root_ / "packs" / pack.id / pack.version;
  if (env_.exists(entry)) {
    const auto other = read_store_entry(env_, entry);  // a damaged one is written again
    if (other.ok() && *other != hash)
      return broken_rule(PackRule::kTarget,
                         fmt::format("another archive is installed as {} ({}), this is {}", pack.label(),
                                     other->substr(0, 12), hash.substr(0, 12)),
                         request.archive->path,
                         "a version never changes: ask the publisher for a new one, or remove the installed one first");
  }
  const Path object = root_ / "objects" / hash;
  TRY(create_dirs_synced(env_, root_ / "objects"));
  TRY(create_dirs_synced(env_, entry.parent_path()));
  // What is there from before may be damaged, or lack the signatures that there are now.
  const auto known = env_.exists(entry) ? read_entry(pack.id, pack.version) : Result<InstalledPack>(InstalledPack{});
  const bool is_current = env_.exists(entry) && known.ok() && is_sound(object, request) &&
                          (request.signature.empty() || known->signed_by.same_as(request.signed_by));
  if (env_.exists(object) && !is_current) {
    if (env_.exists(entry)) TRY(env_.unlink(entry));
    TRY(remove_object(env_, object));
  }
  if (!env_.exists(object)) TRY(write_object(request, object));
  TRY(write_file_atomic(env_, entry, hash + "\n"));
  return read_entry(pack.id, pack.version);
}

Result<RemovedPacks> PackStore::remove(std::string_view id, std::string_view version) {
  const FolderLock held = TRY(lock());
  RemovedPacks out;
  const Path folder = root_ / "packs" / std::string(id);
  if (is_pack_id(id) && env_.exists(folder)) {
    for (const std::string& name : TRY(env_.list_dir(folder))) {
      if (is_temporary_name(name) || (!version.empty() && name != version)) continue;
      InstalledPack pack;
      pack.id = id;
      pack.version = name;
      if (auto known = read_entry(pack.id, name); known.ok()) pack = *std::move(known);
      if (auto done = env_.unlink(folder / name); !done.ok()) {
        out.damaged.push_back({pack.id, name, std::move(done).error()});
        continue;
      }
      out.packs.push_back(std::move(pack));
    }
    TRY(env_.sync_dir(folder));
    if (TRY(env_.list_dir(folder)).empty()) TRY(env_.remove_dir(folder));
  }
  if (out.packs.empty() && out.damaged.empty())
    return Error{ErrorKind::kData,
                 fmt::format("{}{} is not installed", id, version.empty() ? "" : "@" + std::string(version)),
                 root_.string(), "`mortise pack list` shows what is"};
  TRY(collect_locked(out.damaged));
  return out;
}

Result<size_t> PackStore::collect_garbage() {
  const FolderLock held = TRY(lock());
  std::vector<DamagedEntry> damaged;
  const size_t count = TRY(collect_locked(damaged));
  if (!damaged.empty()) return std::move(damaged.front().error);
  return count;
}

Result<std::set<std::string>> PackStore::objects_in_use(std::vector<DamagedEntry>& damaged) {
  std::set<std::string> used;
  const Path packs = root_ / "packs";
  if (!env_.exists(packs)) return used;
  for (const std::string& id : TRY(env_.list_dir(packs))) {
    auto names = env_.list_dir(packs / id);
    if (!names.ok()) {
      damaged.push_back({id, "", std::move(names).error()});
      continue;
    }
    for (const std::string& name : *names) {
      if (is_temporary_name(name)) {
        TRY(env_.unlink(packs / id / name));
        continue;
      }
      auto object = read_store_entry(env_, packs / id / name);
      if (object.ok()) {
        used.insert(*std::move(object));
      } else {
        damaged.push_back({id, name, std::move(object).error()});
      }
    }
  }
  return used;
}

// A damaged entry does not say which object it names, so all objects stay while there is one.
Result<size_t> PackStore::collect_locked(std::vector<DamagedEntry>& damaged) {
  const size_t num_known = damaged.size();
  const std::set<std::string> used = TRY(objects_in_use(damaged));
  const Path objects = root_ / "objects";
  size_t count = 0;
  if (damaged.size() > num_known || !env_.exists(objects)) return count;
  for (const std::string& name : TRY(env_.list_dir(objects))) {
    if (used.count(name) != 0) continue;
    TRY(remove_object(env_, objects / name));
    ++count;
  }
  return count;
}

}  // namespace mortise
