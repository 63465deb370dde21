// Reads and writes mortise.lock, and says how to get a missing pack.
#include "packs/run_lock.h"

#include <fmt/core.h>

#include <algorithm>

#include "foundation/base/text.h"
#include "foundation/formats/json.h"
#include "packs/json_text.h"

namespace mortise {
namespace {

constexpr uint64_t kMaxLockBytes = 16 * limits::kMiB;

}  // namespace

const LockedPack* RunLock::find(std::string_view id, std::string_view sha256) const {
  const auto it = std::find_if(packs.begin(), packs.end(),
                               [&](const LockedPack& pack) { return pack.id == id && pack.sha256 == sha256; });
  return it == packs.end() ? nullptr : &*it;
}

Result<RunLock> read_run_lock(Env& env, const Path& path) {
  if (!env.exists(path))
    return Error{ErrorKind::kData, "there is no lock of the run's packs", path.string(),
                 "make one with `mortise pack lock RUN.toml`"};
  const std::string text = TRY(env.read_file(path, kMaxLockBytes));
  const Json json = TRY(parse_json(text, path.string()));
  const Json* packs = json_find(json, "packs");
  if (packs == nullptr || !packs->is_array())
    return Error{ErrorKind::kData, "this is not a mortise.lock: 'packs' is missing", path.string(),
                 "make it again with `mortise pack lock RUN.toml`"};
  RunLock lock;
  lock.path = path.string();
  for (const Json& pack : *packs)
    lock.packs.push_back({text_or_empty(pack, "id"), text_or_empty(pack, "version"), text_or_empty(pack, "sha256"),
                          text_or_empty(pack, "archive_sha256"), text_or_empty(pack, "source")});
  return lock;
}

std::string how_to_get(const LockedPack& pack) {
  std::string text = fmt::format("{} {} ({})", pack.id, pack.version, pack.sha256.substr(0, 12));
  if (!pack.source.empty()) text += ", which was installed from " + pack.source;
  return text;
}

}  // namespace mortise
