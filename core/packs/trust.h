// Whose packs are taken: trusted keys, the ids that each may sign, revocations, and the policy of this machine.
//
// trust.toml, in the user's and in the machine's folder (both count):
//   [[key]]      public = "RWQ..."  ids = ["acme.*"]  name = "Acme"  index = "https://packs.acme.dev"
//   [[revoked]]  key = "RWQ..."  or  sha256 = "..." of an archive (and id);  reason = "..."
// A key is its whole text, never its id alone: whoever makes a key chooses its id. In a file that the user writes,
// `key` of a revocation may be an id, which then counts for every key of that id.
// policy.toml of the machine: [plugins] trust = "any" | "locked" | "signed".
// The keys with the most specific pattern own an id: whoever trusts a key for "acme.*" takes packs of acme.match from
// no key that is trusted for "*" only. Threading: values; change_trust() holds a lock among processes.
#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "foundation/base/env.h"
#include "foundation/base/folder_lock.h"
#include "foundation/base/result.h"
#include "packs/minisign.h"
#include "packs/places.h"

namespace mortise {

struct TrustedKey {
  SigningPublicKey key;
  std::vector<std::string> ids;  // "acme.*", "acme.match", "*"
  std::string name, index;
  bool of_machine = false;
};

struct Revocation {
  std::string key;     // a whole key or, in a file of the user, its id; or
  std::string sha256;  // of an archive
  std::string id;      // the only pack that the sha256 counts for; "": any
  std::string reason;
  bool of_machine = false;
};

struct Trust {
  std::vector<TrustedKey> keys;
  std::vector<Revocation> revoked;

  // `key`: its whole text. An id, where no more is known, meets every revoked key of this id.
  [[nodiscard]] const Revocation* revocation_of_key(std::string_view key) const;
  [[nodiscard]] const Revocation* revocation_of_pack(std::string_view sha256, std::string_view id) const;
  // The keys that own the id; empty: nobody does.
  [[nodiscard]] std::vector<const TrustedKey*> owners(std::string_view pack_id) const;
};

// The id in the text of a key, or the id itself; what `pack list` shows.
[[nodiscard]] std::string shown_key(std::string_view key);

// The key that a user names: a .pub file, the text in it, or the id of one of `known`. Of an id that several keys have,
// and of one that none has, it is an error.
Result<SigningPublicKey> find_key(Env& env, std::string_view word, const std::vector<SigningPublicKey>& known);

// Is it "*", "word.*" or an id?
[[nodiscard]] bool is_id_pattern(std::string_view pattern);
[[nodiscard]] bool id_matches(std::string_view pattern, std::string_view pack_id);
// How specific a pattern is: the length of what it fixes. Of two that match an id, the heavier owns it.
[[nodiscard]] size_t pattern_weight(std::string_view pattern);
// Does every id of `inner` match `outer`?
[[nodiscard]] bool pattern_covers(std::string_view outer, std::string_view inner);

Result<Trust> read_trust(Env& env, const PackPlaces& places);
// Rewrites the user's file with the entries that are not the machine's. The caller holds lock_trust().
Result<> write_trust(Env& env, const PackPlaces& places, const Trust& trust);
// One process at a time changes the user's file, or what was seen last of an index. Waits for another one.
Result<FolderLock> lock_trust(Env& env, const PackPlaces& places);
// Reads, changes and writes under the lock, and returns what was written.
Result<Trust> change_trust(Env& env, const PackPlaces& places, const std::function<Result<>(Trust&)>& change);

// Which packs a run takes besides those of the installation. Both may hold at once.
struct TrustPolicy {
  bool must_be_locked = false, must_be_signed = false;
  [[nodiscard]] std::string text() const;  // "any", "locked", "signed", "locked and signed"
  bool operator==(const TrustPolicy&) const = default;
};
Result<TrustPolicy> parse_trust_policy(std::string_view text, std::string_view where);
// What both ask for: a policy can only become tighter.
[[nodiscard]] TrustPolicy tighter(const TrustPolicy& a, const TrustPolicy& b);
Result<TrustPolicy> machine_policy(Env& env, const PackPlaces& places);

// Who signed: the trusted key that owns `pack_id` and signed exactly `bytes`. Rules P16 to P19.
Result<TrustedKey> check_signer(const Trust& trust, std::string_view signature_text, std::string_view bytes,
                                std::string_view pack_id, std::string_view pack_version, std::string_view where);
// The trusted key that signed exactly `bytes`, whatever ids it owns. Rules P16 to P18.
Result<TrustedKey> find_signer(const Trust& trust, const FileSignature& signature, std::string_view bytes,
                               std::string_view where);
// Rule P18 for the archive with this hash.
Result<> check_not_revoked(const Trust& trust, std::string_view sha256, std::string_view id, std::string_view where);

}  // namespace mortise
