// Who signed a file: the signatures under it, counted against the keys of the trusted publishers.
//
// A publisher has signed a file if at least `threshold` of its keys did. A key counts once, however often it signed. A
// revoked key, a forged signature and a key of nobody count nothing. The order of the signatures does not matter.
// Source: The Update Framework, specification 1.0, section 5.3. Cost: one pass over the bytes. Threading: pure functions.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "foundation/base/result.h"
#include "packs/minisign.h"
#include "packs/trust.h"

namespace mortise {

struct SignedBy {
  Publisher publisher;
  std::vector<SigningPublicKey> keys;  // those of its keys that count
};

// Who signed: the publisher that owns `pack_id` and signed exactly `bytes`. Rules P16 to P19 and P25. `untrusted`, if
// given, is set if nothing worse is wrong than that too few of the publisher's keys signed, or none: no signature is
// forged, of another pack, or of a revoked key.
Result<SignedBy> check_signer(const Trust& trust, std::string_view signature_text, std::string_view bytes,
                              std::string_view pack_id, std::string_view pack_version, std::string_view where,
                              bool* untrusted = nullptr);
// The publishers, at least one, that signed exactly `bytes`, whatever ids they own. Rules P16 to P18 and P25. They point
// into `trust`.
Result<std::vector<const Publisher*>> find_signers(const Trust& trust, const std::vector<FileSignature>& signatures,
                                                   std::string_view bytes, std::string_view where);
// Which of the keys signed exactly `bytes` and are not revoked: each once.
[[nodiscard]] std::vector<SigningPublicKey> keys_that_signed(const std::vector<SigningPublicKey>& keys,
                                                             const Trust& trust,
                                                             const std::vector<FileSignature>& signatures,
                                                             std::string_view bytes);
// The revocation that leaves fewer than `threshold` of the keys that signed a pack. Null without one.
[[nodiscard]] const Revocation* revocation_of_signers(const Trust& trust, const SignerSet& signed_by);
// A revocation of a key that made one of the signatures of exactly `bytes`. Null without one.
[[nodiscard]] const Revocation* revocation_of_signatures(const Trust& trust,
                                                         const std::vector<FileSignature>& signatures,
                                                         std::string_view bytes);
// Rule P18 for the archive with this hash.
Result<> check_not_revoked(const Trust& trust, std::string_view sha256, std::string_view id, std::string_view where);

}  // namespace mortise
