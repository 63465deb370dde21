// Removes packs that the run may not use, and checks the lock.
#include "train/run/admission.h"

#include <fmt/core.h>

#include <algorithm>
#include <optional>

#include "foundation/base/choice.h"
#include "foundation/base/text.h"
#include "packs/admission.h"
#include "packs/run_lock.h"
#include "train/resume/pack_lock.h"

namespace mortise {
namespace {

// Every pack of the lock is there, and the run's plugins are of these packs.
Result<> check_locked_run(const RunLock& lock, const PluginRegistry& registry, const LoadedConfig& loaded) {
  for (const LockedPack& pack : lock.packs) {
    const auto is_it = [&](const Candidate& one) { return one.info.id == pack.id && one.info.sha256 == pack.sha256; };
    if (std::any_of(registry.candidates().begin(), registry.candidates().end(), is_it)) continue;
    for (const RejectedCandidate& one : registry.rejected())  // it is there, but revoked or not signed
      if (one.info && one.info->id == pack.id && one.info->sha256 == pack.sha256)
        return Error{ErrorKind::kPlugin,
                     fmt::format("a pack of the lock may not be used: {}: {}", how_to_get(pack), one.reason.what),
                     lock.path, one.reason.next};
    std::string have;
    for (const Candidate& one : registry.candidates())
      if (one.info.id == pack.id) have = fmt::format("; there is {} ({})", one.info.label(), one.info.short_hash());
    return Error{ErrorKind::kPlugin, fmt::format("a pack of the lock is not installed: {}{}", how_to_get(pack), have),
                 lock.path,
                 pack.source.empty() ? "put it where the run finds it, or lock again with `mortise pack lock`"
                                     : fmt::format("run `mortise pack install {}@={} --index {}`, or install its file",
                                                   pack.id, pack.version, pack.source)};
  }
  for (const PluginUse& use : plugin_uses(loaded.config)) {
    const auto ref = registry.find(use.kind, use.name);
    if (!ref.ok() || lock.find(ref->pack->id, ref->pack->sha256) != nullptr) continue;
    return Error{ErrorKind::kPlugin,
                 fmt::format("the {} {} comes from {}, which is not in {}", use.kind, quote(use.name),
                             ref->pack->label(), lock.path),
                 loaded.where(use.name_key), "lock it with `mortise pack lock RUN.toml`"};
  }
  return {};
}

}  // namespace

Path lock_path(const LoadedConfig& loaded) { return Path(loaded.file).parent_path() / "mortise.lock"; }

Result<PluginRegistry> open_admitted(const LoadedConfig& loaded, RegistryOptions options) {
  return open_admitted(loaded, std::move(options), known_pack_places());
}

Result<PluginRegistry> open_admitted(const LoadedConfig& loaded, RegistryOptions options, const PackPlaces& places) {
  Env& env = default_env();
  const TrustPolicy machine = TRY(machine_policy(env, places));
  const TrustPolicy wanted =
      TRY(parse_trust_policy(choice_name(loaded.config.plugins.trust), loaded.where("plugins.trust")));
  const TrustPolicy policy = tighter(wanted, machine);
  std::optional<RunLock> lock;
  if (policy.must_be_locked) lock = TRY(read_run_lock(env, lock_path(loaded)));
  options.admit = TRY(pack_admission(env, places, policy, lock));
  PluginRegistry registry = TRY(PluginRegistry::open(options));
  if (lock) TRY(check_locked_run(*lock, registry, loaded));
  return registry;
}

}  // namespace mortise
