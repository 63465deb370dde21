// Judges the signature of an archive by the trusted keys and the policy.
#include "packs/origin.h"

#include <algorithm>

#include "packs/rules.h"

namespace mortise {
namespace {

bool is_of_unknown_key(const Trust& trust, const std::string& signature_text, const std::string& id) {
  const auto signature = parse_signature(signature_text, "");
  if (!signature.ok() || trust.revocation_of_key(key_id_text(signature->key_id)) != nullptr) return false;
  const auto owners = trust.owners(id);
  return std::none_of(owners.begin(), owners.end(),
                      [&](const TrustedKey* owner) { return owner->key.id == signature->key_id; });
}

}  // namespace

Result<ArchiveOrigin> check_origin(const Trust& trust, const TrustPolicy& policy, const PackArchive& archive,
                                   const std::string& signature) {
  const PackDescription& pack = archive.description;
  TRY(check_not_revoked(trust, archive.sha256, pack.id, archive.path));
  ArchiveOrigin origin;
  if (signature.empty()) {
    if (!policy.must_be_signed) return origin;
    return broken_rule(PackRule::kSignature, "the pack is not signed", archive.path,
                       "ask the publisher for the .minisig, or give --trust any if you trust these bytes");
  }
  auto signer = check_signer(trust, signature, archive.bytes, pack.id, pack.version, archive.path + ".minisig");
  if (!signer.ok() && (policy.must_be_signed || !is_of_unknown_key(trust, signature, pack.id)))
    return std::move(signer).error();
  if (signer.ok()) {
    origin.signer = *std::move(signer);
  } else {
    origin.doubt = "the signature does not count: " + signer.error().to_string();
  }
  return origin;
}

}  // namespace mortise
