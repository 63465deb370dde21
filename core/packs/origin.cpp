// Judges the signature of an archive by the trusted keys and the policy.
#include "packs/origin.h"

#include "packs/rules.h"

namespace mortise {
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
  bool untrusted = false;
  auto signer =
      check_signer(trust, signature, archive.bytes, pack.id, pack.version, archive.path + ".minisig", &untrusted);
  if (!signer.ok() && (policy.must_be_signed || !untrusted)) return std::move(signer).error();
  if (signer.ok()) {
    origin.signer = *std::move(signer);
  } else {
    origin.doubt = "the signature does not count: " + signer.error().to_string();
  }
  return origin;
}

}  // namespace mortise
