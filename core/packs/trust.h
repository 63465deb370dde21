// Whose packs are taken: trusted publishers, the ids that each may sign, revocations, and the policy of this machine.
//
// trust.toml, in the user's and in the machine's folder (both count):
//   [[publisher]]  keys = ["RWQ...", ...]  threshold = 2  ids = ["acme.*"]  name = "Acme"  index = "https://packs.acme.dev"
//                  former = ["RWQ..."], the keys before a rotation
//   [[revoked]]    key = "RWQ..."  or  sha256 = "..." of an archive (and id);  reason = "..."
// `threshold` (1 without it) of a publisher's keys must sign what counts as the publisher's.
// A key is its whole text, never its id alone: whoever makes a key chooses its id. In a file that the user writes,
// `key` of a revocation may be an id, which then counts for every key of that id.
// policy.toml of the machine: [plugins] trust = "any" | "locked" | "signed".
// The publishers with the most specific pattern own an id: whoever trusts a key for "acme.*" takes packs of acme.match
// from no key that is trusted for "*" only. Threading: values; change_trust() holds a lock among processes.
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

inline constexpr size_t kMaxSigners = kMaxSignatures;  // signers of one publisher

// k of n: a file is theirs if `threshold` of the keys signed it. After the roles of The Update Framework,
// specification 1.0, section 4.3.
struct SignerSet {
  std::vector<SigningPublicKey> keys;
  uint32_t threshold = 1;

  [[nodiscard]] bool contains(const SigningPublicKey& key) const;
  [[nodiscard]] bool same_as(const SignerSet& other) const;  // in any order
  [[nodiscard]] std::string text() const;                    // "the key A", "2 of the keys A, B, C"
};
[[nodiscard]] SignerSet one_signer(const SigningPublicKey& key);
// From 1 to kMaxSigners keys, no key and no id of a key twice, and a threshold that they can reach. Otherwise what is
// wrong: it starts with "the signers".
[[nodiscard]] std::string signer_set_fault(const SignerSet& set);

struct Publisher {
  SignerSet signers;
  std::vector<std::string> ids;  // "acme.*", "acme.match", "*"
  std::string name, index;
  bool of_machine = false;
  std::vector<SigningPublicKey> former = {};  // keys before a rotation: they count nothing, but may still be revoked

  [[nodiscard]] std::vector<SigningPublicKey> all_keys() const;  // the former ones, too
};

struct Revocation {
  std::string key;     // a whole key or, in a file of the user, its id; or
  std::string sha256;  // hash of an archive
  std::string id;      // the only pack that the sha256 counts for; "": any
  std::string reason;
  bool of_machine = false;
};

struct Trust {
  std::vector<Publisher> publishers;
  std::vector<Revocation> revoked;

  // `key`: its whole text. An id, where no more is known, meets every revoked key of this id.
  [[nodiscard]] const Revocation* revocation_of_key(std::string_view key) const;
  [[nodiscard]] const Revocation* revocation_of_pack(std::string_view sha256, std::string_view id) const;
  // Those who own the id; empty: nobody does.
  [[nodiscard]] std::vector<const Publisher*> owners(std::string_view pack_id) const;
  // all_keys() of every publisher.
  [[nodiscard]] std::vector<SigningPublicKey> keys() const;
};

// The id in the text of a key, or the id itself; what `pack list` shows.
[[nodiscard]] std::string shown_key(std::string_view key);
[[nodiscard]] std::string shown_keys(const std::vector<SigningPublicKey>& keys);  // "A, B"

// The key that a user names: a .pub file, the text in it, or the id of one of `known`. An id
// that several keys have, or none, is an error.
Result<SigningPublicKey> find_key(Env& env, std::string_view word, const std::vector<SigningPublicKey>& known);

// Is it "*", "word.*" or an id?
[[nodiscard]] bool is_id_pattern(std::string_view pattern);
[[nodiscard]] bool id_matches(std::string_view pattern, std::string_view pack_id);
// How specific a pattern is: the length of what it fixes. If two match an id, the heavier owns it.
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

// Which packs a run uses in addition to those of the installation. Both may hold at once.
struct TrustPolicy {
  bool must_be_locked = false, must_be_signed = false;
  [[nodiscard]] std::string text() const;  // "any", "locked", "signed", "locked and signed"
  bool operator==(const TrustPolicy&) const = default;
};
Result<TrustPolicy> parse_trust_policy(std::string_view text, std::string_view where);
// What both ask for: a policy can only become tighter.
[[nodiscard]] TrustPolicy tighter(const TrustPolicy& a, const TrustPolicy& b);
Result<TrustPolicy> machine_policy(Env& env, const PackPlaces& places);

}  // namespace mortise
