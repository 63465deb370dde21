// Refuses packs that may not be used, with the rule.
#include "packs/admission.h"

#include <fmt/core.h>

#include <algorithm>
#include <memory>
#include <vector>

#include "foundation/base/text.h"
#include "packs/pack_archive.h"
#include "packs/rules.h"
#include "packs/signers.h"
#include "packs/store.h"

namespace mortise {
namespace {

struct Admission {
  Env& env;
  TrustPolicy policy;
  std::optional<RunLock> lock;
  Trust trust;
  Path objects;  // the store's objects
  std::vector<InstalledPack> installed;
  std::vector<DamagedEntry> damaged;

  Result<> operator()(const PackInfo& info) const {
    const InstalledPack* pack = nullptr;
    for (const InstalledPack& one : installed)
      if (one.id == info.id && one.library_sha256 == info.sha256) pack = &one;
    if (pack == nullptr) TRY(check_not_in_store(info));
    if (pack != nullptr) TRY(check_revocations(*pack, info.path));
    if (policy.must_be_locked && lock && lock->find(info.id, info.sha256) == nullptr)
      return broken_rule(PackRule::kTarget,
                         fmt::format("{} ({}) is not in {}", info.label(), info.short_hash(), lock->path), info.path,
                         "lock it with `mortise pack lock RUN.toml` if the run is to use it");
    return policy.must_be_signed ? check_signed(info, pack) : Result<>();
  }

  // The store is addressed by content: a file in it is one that `install` wrote, or somebody changed it.
  Result<> check_not_in_store(const PackInfo& info) const {
    if (!is_inside(Path(info.path), objects)) return {};
    const std::string next = "run `mortise pack install` with the same archive again: it repairs the store";
    for (const DamagedEntry& one : damaged)
      if (one.id == info.id)
        return broken_rule(PackRule::kTarget, "the store's entry of it is damaged: " + one.error.what, info.path, next);
    return broken_rule(
        PackRule::kTarget,
        fmt::format("the file in the store is not the one that was installed (it has {})", info.short_hash()),
        info.path, next);
  }

  static bool is_inside(const Path& file, const Path& folder) {
    const Path normal = file.lexically_normal();
    return std::mismatch(folder.begin(), folder.end(), normal.begin(), normal.end()).first == folder.end();
  }

  Result<> check_revocations(const InstalledPack& pack, const std::string& path) const {
    TRY(check_not_revoked(trust, pack.sha256, pack.id, path));
    const Revocation* revoked = TRY(revocation_of_installed(env, trust, pack));
    if (revoked == nullptr) return {};
    return broken_rule(PackRule::kRevoked,
                       fmt::format("it was signed with the key {}, which was revoked", shown_key(revoked->key)), path,
                       "install a version signed with another key");
  }

  // The archive in the store is verified again: its signature, and that this very file is a build of it.
  Result<> check_signed(const PackInfo& info, const InstalledPack* pack) const {
    const auto refuse = [&](std::string what) {
      return broken_rule(PackRule::kSignature, std::move(what), info.path,
                         "install it signed with `mortise pack install`, or do without plugins.trust = \"signed\"");
    };
    if (pack == nullptr) return refuse("this pack was not installed from a signed archive");
    const Path signature_path = pack->archive.string() + ".minisig";
    if (!env.exists(signature_path)) return refuse("this pack was installed without a signature that counts");
    const std::string signature = TRY(env.read_file(signature_path, kMaxSignatureFileBytes));
    const PackArchive archive = TRY(read_pack_archive(env, pack->archive));
    TRY(check_signer(trust, signature, archive.bytes, info.id, info.version, pack->archive.string()));
    const bool is_build = std::any_of(archive.description.builds.begin(), archive.description.builds.end(),
                                      [&](const PackBuild& build) { return build.sha256 == info.sha256; });
    if (!is_build || archive.description.id != info.id) return refuse("the file is not a build of its archive");
    return {};
  }
};

}  // namespace

Result<const Revocation*> revocation_of_installed(Env& env, const Trust& trust, const InstalledPack& pack) {
  if (const Revocation* revoked = trust.revocation_of_pack(pack.sha256, pack.id)) return revoked;
  if (const Revocation* revoked = revocation_of_signers(trust, pack.signed_by)) return revoked;
  const bool may_be = pack.signed_by.keys.empty() &&
                      std::any_of(pack.other_keys.begin(), pack.other_keys.end(),
                                  [&](const std::string& id) { return trust.revocation_of_key(id) != nullptr; });
  if (!may_be) return nullptr;
  const std::string signature_path = pack.archive.string() + ".minisig";
  const std::string signature = TRY(env.read_file(signature_path, kMaxSignatureFileBytes));
  const auto signatures = TRY(parse_signatures(signature, signature_path));
  return revocation_of_signatures(trust, signatures, TRY(env.read_file(pack.archive, kMaxArchiveBytes)));
}

Result<std::function<Result<>(const PackInfo&)>> pack_admission(Env& env, const PackPlaces& places,
                                                                const TrustPolicy& policy,
                                                                std::optional<RunLock> lock) {
  auto admission = std::make_shared<Admission>(Admission{env, policy, std::move(lock), {}, {}, {}, {}});
  admission->trust = TRY(read_trust(env, places));
  admission->objects = places.store.lexically_normal() / "objects";
  auto installed = PackStore(env, places.store).list(&admission->damaged);
  // Without a store that can be listed no pack comes from it; but nobody knows what was revoked or signed.
  if (!installed.ok() && (policy.must_be_signed || !admission->trust.revoked.empty()))
    return std::move(installed).error();
  if (installed.ok()) admission->installed = *std::move(installed);
  return std::function<Result<>(const PackInfo&)>([admission](const PackInfo& info) { return (*admission)(info); });
}

}  // namespace mortise
