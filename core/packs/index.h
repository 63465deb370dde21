// An index: a static folder of archives with a signed list of them, which any web server can serve.
//
//   index.json           {"format":1, "name", "version", "created", "expires", "packs":[{"id","version","file","size",
//                        "sha256"}], "signers":{"threshold","keys"}, "keys":[{"public","ids"}],
//                        "revoked":[{"key"|"sha256","id","reason"}]}
//                        (a revoked key is the whole of it, never its id)
//   index.json.minisig   signatures of trusted publishers that own every id in it
//   acme.match-1.0.0.mpack, acme.match-1.0.0.mpack.minisig ...
//
// What is checked (rules P20 to P25): the signatures; that the publishers that signed own each id, each new key's ids
// and each revoked one; that its version is not below the one seen last, nor another index of the same version; that it
// has not expired; and of a file that it is the one the index names, by size, hash, id and version, and signed itself.
// "signers" is how a publisher rotates: readers that trust who signed the index trust these keys instead from then on, if
// enough of them signed it too. "keys" names further keys, each trusted alone for its ids. Times are Unix seconds.
// Source: The Update Framework, specification 1.0: section 1.5 for the attacks, 5.3.4 for the rotation (there of the
// root role). Threading: one thread.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "foundation/base/env.h"
#include "foundation/base/result.h"
#include "packs/fetch.h"
#include "packs/signers.h"
#include "packs/trust.h"

namespace mortise {

inline constexpr const char* kPackIndexFile = "index.json";
inline constexpr uint64_t kMaxPackIndexBytes = 4 * limits::kMiB;

struct IndexedPack {
  std::string id, version, file, sha256;
  uint64_t size = 0;
};

struct IndexedKey {
  SigningPublicKey key;
  std::vector<std::string> ids;
};

struct PackIndex {
  std::string name;
  uint64_t version = 0;
  int64_t created = 0, expires = 0;
  std::vector<IndexedPack> packs;
  SignerSet signers;  // the publisher's signers; no keys: the one key that signed
  std::vector<IndexedKey> keys;
  std::vector<Revocation> revoked;

  // The newest version of the pack that the range (^1.2; "" for any) takes; null without one. Pre-releases only where
  // the range names one.
  [[nodiscard]] Result<const IndexedPack*> newest(std::string_view id, std::string_view range) const;
};

// Format alone.
Result<PackIndex> parse_index(std::string_view text, std::string_view where);
[[nodiscard]] std::string index_text(const PackIndex& index);
[[nodiscard]] std::string index_comment(const PackIndex& index, Env& env);  // what is signed with it

// An index that was fetched and checked, and what it changed.
struct CheckedIndex {
  PackIndex index;
  std::vector<std::string> news;  // "key ... is trusted for acme.*", "key ... is revoked": written to the user's trust
};
// Reads the index of `place` (a folder or URL), checks it, remembers its version, and takes over its keys and
// revocations into the user's trust.toml. `trust` is what holds then.
Result<CheckedIndex> read_index(Env& env, const PackPlaces& places, const std::string& place, FileSource& source,
                                Trust& trust);

// An archive of the index, with its signature.
struct IndexedArchive {
  std::string bytes, signature;
};
Result<IndexedArchive> fetch_indexed(FileSource& source, const IndexedPack& pack, const std::string& place);

// `mortise pack publish`: what is to be changed in the index of a folder.
struct PublishRequest {
  std::vector<Path> archives;  // each with its .minisig in the same folder, of a signer or a key that the index names
  std::vector<IndexedKey> keys;
  std::vector<Revocation> revoked;
  std::string name;
  int64_t lifetime_s = 0;
  std::vector<SigningPublicKey> previous = {};  // keys that signed the index so far, if `key` did not
  SignerSet signers = {};                       // no keys: those that the index has
};
// Copies the archives, adds them to the index, raises its version and signs it with one key. The files come before the
// index that names them, so that a reader never sees a name without a file.
Result<PackIndex> publish_index(Env& env, const Path& folder, const SigningSecretKey& key, const PublishRequest& given);

// `mortise pack publish --add-signature`: a further signer of an index agrees with it.
struct CountersignRequest {
  const SigningSecretKey* key = nullptr;        // signs the index, and every archive that has too few signatures
  std::vector<Path> signatures;                 // .minisig files that minisign wrote for the index or its archives
  std::vector<SigningPublicKey> previous = {};  // keys that may sign, too: those of a publisher that rotates
};
struct Countersigned {
  PackIndex index;
  std::vector<SigningPublicKey> keys;  // keys of the signers that have signed it now
  std::vector<std::string> files;      // that got a signature
};
// Adds signatures and changes nothing else. A file that is not the one the index names is not signed.
Result<Countersigned> countersign_index(Env& env, const Path& folder, const CountersignRequest& request);

}  // namespace mortise
