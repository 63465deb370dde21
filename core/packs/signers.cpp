// Counts signatures, and says why too few of them count.
#include "packs/signers.h"

#include <fmt/core.h>

#include <algorithm>
#include <optional>

#include "foundation/base/text.h"
#include "packs/rules.h"

namespace mortise {
namespace {

std::string reason_of(const Revocation& revoked) { return revoked.reason.empty() ? "" : ": " + revoked.reason; }

Error revoked_key(const Revocation& revoked, const KeyId& key_id, std::string_view where) {
  return broken_rule(
      PackRule::kRevoked,
      fmt::format("it is signed with the key {}, which was revoked{}", key_id_text(key_id), reason_of(revoked)), where,
      "ask the publisher for a version signed with another key");
}

// A key of this id was revoked, and it made the signature or, if only its id is known, may have made it.
const Revocation* revoked_signer(const Trust& trust, const FileSignature& signature, const SignedHash& hash) {
  for (const Revocation& one : trust.revoked) {
    if (one.key.empty() || shown_key(one.key) != key_id_text(signature.key_id)) continue;
    if (parse_key_id(one.key)) return &one;
    const auto key = parse_public_key(one.key, "");
    if (key.ok() && verify_signature(signature, *key, hash, "").ok()) return &one;
  }
  return nullptr;
}

// The signatures of a file, and which of them are of revoked keys.
struct SignedFile {
  SignedFile(const Trust& trust, const std::vector<FileSignature>& given, std::string_view bytes, std::string_view file)
      : signatures(given), hash(signed_hash(bytes)), where(file) {
    for (const FileSignature& one : signatures) revoked.push_back(revoked_signer(trust, one, hash));
  }
  [[nodiscard]] std::optional<Error> revocation() const {
    for (size_t i = 0; i < signatures.size(); ++i)
      if (revoked[i] != nullptr) return revoked_key(*revoked[i], signatures[i].key_id, where);
    return std::nullopt;
  }
  const std::vector<FileSignature>& signatures;
  SignedHash hash;
  std::string where;
  std::vector<const Revocation*> revoked;  // one for each signature, null if it is not of a revoked key
};

// What the signatures say about some keys.
struct Tally {
  std::vector<SigningPublicKey> keys;         // that count
  std::vector<const FileSignature*> counted;  // theirs
  std::optional<Error> forged;                // a signature that names one of the keys and is not that key's
};

Tally tally(const SignedFile& file, const std::vector<SigningPublicKey>& keys) {
  Tally out;
  for (size_t i = 0; i < file.signatures.size(); ++i) {
    if (file.revoked[i] != nullptr) continue;
    std::optional<Error> fault;
    for (const SigningPublicKey& key : keys) {
      if (key.id != file.signatures[i].key_id) continue;
      const auto verified = verify_signature(file.signatures[i], key, file.hash, file.where);
      if (!verified.ok()) {
        fault = verified.error();
        continue;
      }
      fault.reset();
      const bool is_new = std::none_of(out.keys.begin(), out.keys.end(),
                                       [&](const SigningPublicKey& one) { return one.key == key.key; });
      if (is_new) out.keys.push_back(key);
      out.counted.push_back(&file.signatures[i]);
      break;
    }
    if (fault) out.forged = std::move(fault);
  }
  return out;
}

// Some of the publisher's keys signed, but too few.
Error too_few(const Publisher& publisher, const Tally& found, const SignedFile& file) {
  const SignerSet& signers = publisher.signers;
  std::string what =
      fmt::format("it has {} of the {} signatures that {} needs: that of {} counts", found.keys.size(),
                  signers.threshold, publisher.name.empty() ? "its publisher" : publisher.name, shown_keys(found.keys));
  for (size_t i = 0; i < file.signatures.size(); ++i) {
    if (file.revoked[i] == nullptr) continue;
    what += fmt::format("; that of {} does not, for the key was revoked{}", key_id_text(file.signatures[i].key_id),
                        reason_of(*file.revoked[i]));
  }
  if (found.forged) what += "; one is forged";
  return broken_rule(PackRule::kThreshold, std::move(what), file.where,
                     "ask the publisher for signatures of " + signers.text());
}

// The counts of some publishers, none of which is high enough.
struct Shortfall {
  std::optional<Error> few, forged;
  void add(const Publisher& publisher, Tally&& found, const SignedFile& file) {
    if (!few && !found.keys.empty()) few = too_few(publisher, found, file);
    if (!forged) forged = std::move(found.forged);
  }
  // What weighs most; nothing if no signature is of a known key.
  [[nodiscard]] std::optional<Error> error(const SignedFile& file) const {
    if (few) return few;
    if (auto revoked = file.revocation()) return revoked;
    return forged;
  }
};

std::string signed_by_text(const std::vector<FileSignature>& signatures) {
  std::vector<std::string> ids;
  for (const FileSignature& one : signatures) ids.push_back(key_id_text(one.key_id));
  return fmt::format("{}{} that signed it is not trusted", ids.size() == 1 ? "the key " : "each of the keys ",
                     join(ids, ", "));
}

// Rule P19.
Result<> check_comments(const Tally& found, std::string_view pack_id, std::string_view pack_version,
                        std::string_view where) {
  for (const FileSignature* one : found.counted) {
    const std::string id = comment_field(one->comment, "pack"), version = comment_field(one->comment, "version");
    if ((!id.empty() && id != pack_id) || (!version.empty() && !pack_version.empty() && version != pack_version))
      return broken_rule(PackRule::kComment, fmt::format("its signed comment is of {}@{}", id, version), where,
                         "get the archive and its .minisig again from the publisher");
  }
  return {};
}

Error not_trusted(const std::vector<FileSignature>& signatures, const std::vector<const Publisher*>& owners,
                  std::string_view pack_id, std::string_view where) {
  std::vector<std::string> names;
  for (const Publisher* owner : owners) names.push_back(owner->signers.text());
  return broken_rule(PackRule::kOwner,
                     fmt::format("{} for {}{}", signed_by_text(signatures), quote(pack_id),
                                 names.empty() ? "; no key is" : "; trusted is " + join(names, ", or ")),
                     where,
                     fmt::format("if it is the publisher's key, run `mortise pack trust KEY.pub --ids '{}.*'`",
                                 std::string(pack_id.substr(0, pack_id.find('.')))));
}

}  // namespace

std::vector<SigningPublicKey> keys_that_signed(const std::vector<SigningPublicKey>& keys, const Trust& trust,
                                               const std::vector<FileSignature>& signatures, std::string_view bytes) {
  return tally(SignedFile(trust, signatures, bytes, ""), keys).keys;
}

Result<std::vector<const Publisher*>> find_signers(const Trust& trust, const std::vector<FileSignature>& signatures,
                                                   std::string_view bytes, std::string_view where) {
  const SignedFile file(trust, signatures, bytes, where);
  std::vector<const Publisher*> out;
  Shortfall shortfall;
  for (const Publisher& one : trust.publishers) {
    Tally found = tally(file, one.signers.keys);
    if (found.keys.size() >= one.signers.threshold) {
      out.push_back(&one);
    } else {
      shortfall.add(one, std::move(found), file);
    }
  }
  if (!out.empty()) return out;
  if (auto error = shortfall.error(file)) return *std::move(error);
  return broken_rule(PackRule::kOwner, signed_by_text(signatures), where,
                     "if it is the publisher's key, run `mortise pack trust KEY.pub --ids 'acme.*'`");
}

Result<SignedBy> check_signer(const Trust& trust, std::string_view signature_text, std::string_view bytes,
                              std::string_view pack_id, std::string_view pack_version, std::string_view where,
                              bool* untrusted) {
  if (untrusted != nullptr) *untrusted = false;
  const auto signatures = TRY(parse_signatures(signature_text, where));
  const SignedFile file(trust, signatures, bytes, where);
  const auto owners = trust.owners(pack_id);
  Shortfall shortfall;
  for (const Publisher* owner : owners) {
    Tally found = tally(file, owner->signers.keys);
    TRY(check_comments(found, pack_id, pack_version, where));
    if (found.keys.size() >= owner->signers.threshold) return SignedBy{*owner, std::move(found.keys)};
    shortfall.add(*owner, std::move(found), file);
  }
  if (untrusted != nullptr) *untrusted = !file.revocation() && !shortfall.forged;
  if (auto error = shortfall.error(file)) return *std::move(error);
  return not_trusted(signatures, owners, pack_id, where);
}

const Revocation* revocation_of_signers(const Trust& trust, const SignerSet& signed_by) {
  const Revocation* found = nullptr;
  size_t num_good = 0;
  for (const SigningPublicKey& key : signed_by.keys) {
    const Revocation* revoked = trust.revocation_of_key(key.text());
    if (revoked == nullptr) ++num_good;
    if (found == nullptr) found = revoked;
  }
  return num_good < signed_by.threshold ? found : nullptr;
}

const Revocation* revocation_of_signatures(const Trust& trust, const std::vector<FileSignature>& signatures,
                                           std::string_view bytes) {
  const SignedFile file(trust, signatures, bytes, "");
  const auto found =
      std::find_if(file.revoked.begin(), file.revoked.end(), [](const auto* one) { return one != nullptr; });
  return found == file.revoked.end() ? nullptr : *found;
}

Result<> check_not_revoked(const Trust& trust, std::string_view sha256, std::string_view id, std::string_view where) {
  const Revocation* revoked = trust.revocation_of_pack(sha256, id);
  if (revoked == nullptr) return {};
  return broken_rule(PackRule::kRevoked, "this archive was revoked" + reason_of(*revoked), where,
                     "install another version; `mortise pack outdated` shows them");
}

}  // namespace mortise
