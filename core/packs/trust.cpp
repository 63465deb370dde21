// Reads trust.toml and policy.toml, and decides whether a signature is trusted.
#include "packs/trust.h"

#include <sys/stat.h>

#include <algorithm>
#include <optional>

#include "foundation/base/rename_target.h"
#include "foundation/base/text.h"
#include "packs/description.h"
#include "packs/fetch.h"
#include "packs/toml_fields.h"
#include "packs/wait_lock.h"
#include "plugin/pack/note.h"

namespace mortise {
namespace {

constexpr const char* kTrustFile = "trust.toml";
constexpr const char* kPolicyFile = "policy.toml";

bool is_key_id(std::string_view key) { return key.size() == 2 * sizeof(KeyId); }

std::string reason_of(const Revocation& revoked) { return revoked.reason.empty() ? "" : ": " + revoked.reason; }

Error as_config(Error error) {
  error.kind = ErrorKind::kConfig;
  return error;
}

Error config_fault(std::string what, std::string_view where) {
  return {ErrorKind::kConfig, std::move(what), std::string(where), "correct the file"};
}

Result<TrustedKey> read_key(const toml::table& table, const std::string& file) {
  const TomlFields fields(table, file, PackRule::kOwner);
  const std::string where = toml_where(file, table);
  TRY(fields.only({"public", "ids", "name", "index"}));
  TrustedKey key;
  std::string text;
  TRY(fields.text("public", text, true));
  key.key = TRY(parse_public_key(text, where));
  TRY(fields.texts("ids", key.ids));
  TRY(fields.text("name", key.name));
  TRY(fields.text("index", key.index));
  if (!key.index.empty()) {
    auto place = normal_place(key.index);
    if (!place.ok()) return config_fault(std::move(place).error().what, where);
    if (!is_url(key.index) && !Path(key.index).is_absolute())
      return config_fault("the folder " + quote(key.index) + " of an index must be named from / on", where);
    key.index = *std::move(place);
  }
  for (const std::string& pattern : key.ids) {
    if (!is_id_pattern(pattern)) return config_fault(quote(pattern) + " is no pattern of ids such as acme.*", where);
  }
  return key;
}

Result<Revocation> read_revocation(const toml::table& table, const std::string& file) {
  const TomlFields fields(table, file, PackRule::kRevoked);
  TRY(fields.only({"key", "sha256", "id", "reason"}));
  Revocation out;
  TRY(fields.text("key", out.key));
  if (!out.key.empty()) {
    const auto key = parse_public_key(out.key, "");
    const auto key_id = parse_key_id(out.key);
    if (!key.ok() && !key_id)
      return config_fault(quote(out.key) + " is neither a public key nor the id of one", toml_where(file, table));
    out.key = key.ok() ? key->text() : key_id_text(*key_id);
  }
  TRY(fields.text("sha256", out.sha256));
  TRY(fields.text("id", out.id));
  TRY(fields.text("reason", out.reason));
  if (out.key.empty() == out.sha256.empty())
    return config_fault("a revocation names a key or a sha256", toml_where(file, table));
  return out;
}

// Trust cannot come from a file that any user of the machine may write.
Result<> check_rights(const Path& path) {
  struct stat info {};
  if (::stat(path.c_str(), &info) != 0 || (info.st_mode & S_IWOTH) == 0) return {};
  return Error{ErrorKind::kConfig, "every user of this machine can write this file, so nothing in it is trusted",
               path.string(), "run `chmod o-w` on it, after you have looked at its content"};
}

Result<> add_file(Env& env, const Path& path, bool of_machine, Trust& trust) {
  if (!env.exists(path)) return {};
  TRY(check_rights(path));
  const toml::table table = TRY(read_toml_file(env, path));
  const std::string file = path.string();
  const TomlFields fields(table, file, PackRule::kOwner);
  TRY(fields.only({"key", "revoked"}));
  for (const toml::table* one : TRY(fields.tables("key"))) {
    trust.keys.push_back(TRY(read_key(*one, file)));
    trust.keys.back().of_machine = of_machine;
  }
  for (const toml::table* one : TRY(fields.tables("revoked"))) {
    trust.revoked.push_back(TRY(read_revocation(*one, file)));
    trust.revoked.back().of_machine = of_machine;
  }
  return {};
}

}  // namespace

const Revocation* Trust::revocation_of_key(std::string_view key) const {
  const auto it = std::find_if(revoked.begin(), revoked.end(), [&](const Revocation& one) {
    if (one.key.empty() || one.key == key) return !one.key.empty();
    return (is_key_id(one.key) || is_key_id(key)) && shown_key(one.key) == shown_key(key);
  });
  return it == revoked.end() ? nullptr : &*it;
}

const Revocation* Trust::revocation_of_pack(std::string_view sha256, std::string_view id) const {
  const auto it = std::find_if(revoked.begin(), revoked.end(), [&](const Revocation& one) {
    return one.sha256 == sha256 && (one.id.empty() || one.id == id);
  });
  return it == revoked.end() ? nullptr : &*it;
}

std::vector<const TrustedKey*> Trust::owners(std::string_view pack_id) const {
  std::vector<const TrustedKey*> out;
  size_t best = 0;
  for (const TrustedKey& key : keys) {
    for (const std::string& pattern : key.ids) {
      if (!id_matches(pattern, pack_id)) continue;
      const size_t weight = pattern_weight(pattern);
      if (weight < best) continue;
      if (weight > best) out.clear();
      best = weight;
      if (out.empty() || out.back() != &key) out.push_back(&key);
    }
  }
  return out;
}

std::string shown_key(std::string_view key) {
  const auto whole = parse_public_key(key, "");
  return whole.ok() ? whole->id_text() : std::string(key);
}

Result<SigningPublicKey> find_key(Env& env, std::string_view word, const std::vector<SigningPublicKey>& known) {
  if (const auto key_id = parse_key_id(word)) {
    std::vector<SigningPublicKey> found;
    for (const SigningPublicKey& key : known)
      if (key.id == *key_id && std::find(found.begin(), found.end(), key) == found.end()) found.push_back(key);
    if (found.size() == 1) return found[0];
    return Error{ErrorKind::kData,
                 (found.empty() ? "no known key has the id " : "several keys have the id ") + key_id_text(*key_id), "",
                 "name the file of the public key, or its line RW..."};
  }
  if (auto key = parse_public_key(word, ""); key.ok()) return key;
  const Path path = word;
  const std::string text = TRY(env.read_file(path, kMaxSigningKeyBytes));
  return parse_public_key(text, path.string());
}

bool is_id_pattern(std::string_view pattern) {
  if (pattern == "*") return true;
  if (!pattern.ends_with(".*")) return is_pack_id(pattern);
  pattern.remove_suffix(2);
  return is_pack_id(std::string(pattern) + ".x");
}

bool id_matches(std::string_view pattern, std::string_view pack_id) {
  if (!pattern.ends_with('*')) return pattern == pack_id;
  pattern.remove_suffix(1);
  return pack_id.starts_with(pattern);
}

size_t pattern_weight(std::string_view pattern) {
  return pattern.ends_with('*') ? pattern.size() - 1 : pattern.size() + 1;
}

bool pattern_covers(std::string_view outer, std::string_view inner) {
  if (!inner.ends_with('*')) return id_matches(outer, inner);
  if (!outer.ends_with('*')) return false;
  inner.remove_suffix(1);
  outer.remove_suffix(1);
  return inner.starts_with(outer);
}

Result<Trust> read_trust(Env& env, const PackPlaces& places) {
  Trust trust;
  for (const bool of_machine : {true, false}) {
    const Path path = (of_machine ? places.machine_config : places.user_config) / kTrustFile;
    if (auto added = add_file(env, path, of_machine, trust); !added.ok()) return as_config(std::move(added).error());
  }
  return trust;
}

Result<> write_trust(Env& env, const PackPlaces& places, const Trust& trust) {
  std::string text = "# Whose packs are taken; `mortise pack trust` writes this file.\n";
  for (const TrustedKey& key : trust.keys) {
    if (key.of_machine) continue;
    text += "\n[[key]] # " + key.key.id_text() + "\npublic = " + toml_quoted(key.key.text()) +
            "\nids = " + toml_list(key.ids) + "\n";
    if (!key.name.empty()) text += "name = " + toml_quoted(key.name) + "\n";
    if (!key.index.empty()) text += "index = " + toml_quoted(key.index) + "\n";
  }
  for (const Revocation& one : trust.revoked) {
    if (one.of_machine) continue;
    text += "\n[[revoked]]\n";
    text += one.key.empty() ? "sha256 = " + toml_quoted(one.sha256) : "key = " + toml_quoted(one.key);
    if (!one.id.empty()) text += "\nid = " + toml_quoted(one.id);
    text += "\nreason = " + toml_quoted(one.reason) + "\n";
  }
  TRY(create_dirs_synced(env, places.user_config));
  return write_file_atomic(env, places.user_config / kTrustFile, text);
}

Result<FolderLock> lock_trust(Env& env, const PackPlaces& places) {
  (void)create_dirs_synced(env, places.user_config);  // in a home that cannot be written there is nothing to guard
  return wait_for_folder(places.user_config, "your trusted keys");
}

Result<Trust> change_trust(Env& env, const PackPlaces& places, const std::function<Result<>(Trust&)>& change) {
  const FolderLock held = TRY(lock_trust(env, places));
  Trust trust = TRY(read_trust(env, places));
  TRY(change(trust));
  TRY(write_trust(env, places, trust));
  return trust;
}

std::string TrustPolicy::text() const {
  if (must_be_locked && must_be_signed) return "locked and signed";
  return must_be_locked ? "locked" : must_be_signed ? "signed" : "any";
}

Result<TrustPolicy> parse_trust_policy(std::string_view text, std::string_view where) {
  if (text == "any") return TrustPolicy{};
  if (text == "locked") return TrustPolicy{true, false};
  if (text == "signed") return TrustPolicy{false, true};
  if (text == "locked and signed") return TrustPolicy{true, true};
  return Error{ErrorKind::kConfig, "the trust " + quote(text) + " is not any, locked or signed", std::string(where),
               "choose one of these"};
}

TrustPolicy tighter(const TrustPolicy& a, const TrustPolicy& b) {
  return {a.must_be_locked || b.must_be_locked, a.must_be_signed || b.must_be_signed};
}

Result<TrustPolicy> machine_policy(Env& env, const PackPlaces& places) {
  const Path path = places.machine_config / kPolicyFile;
  if (!env.exists(path)) return TrustPolicy{};
  TRY(check_rights(path));
  const toml::table table = TRY(read_toml_file(env, path));
  const std::string file = path.string();
  const auto read = [&]() -> Result<std::string> {
    const TomlFields fields(table, file, PackRule::kOwner);
    TRY(fields.only({"plugins"}));
    std::string trust = "any";
    if (const toml::node* plugins = table.get("plugins"); plugins != nullptr) {
      if (!plugins->is_table()) return fields.fault("'plugins' must be a table", plugins);
      const TomlFields inner(*plugins->as_table(), file, PackRule::kOwner);
      TRY(inner.only({"trust"}));
      TRY(inner.text("trust", trust));
    }
    return trust;
  };
  auto trust = read();
  if (!trust.ok()) return as_config(std::move(trust).error());
  return parse_trust_policy(*trust, file);
}

Result<> check_not_revoked(const Trust& trust, std::string_view sha256, std::string_view id, std::string_view where) {
  const Revocation* revoked = trust.revocation_of_pack(sha256, id);
  if (revoked == nullptr) return {};
  return broken_rule(PackRule::kRevoked, "this archive was revoked" + reason_of(*revoked), where,
                     "install another version; `mortise pack outdated` shows them");
}

namespace {

Error revoked_key(const Revocation& revoked, const std::string& key_id, std::string_view where) {
  return broken_rule(PackRule::kRevoked,
                     "it is signed with the key " + key_id + ", which was revoked" + reason_of(revoked), where,
                     "ask the publisher for a version signed with another key");
}

// A key of this id was revoked, and it made the signature or, if only its id is known, may have made it.
const Revocation* revoked_signer(const Trust& trust, const FileSignature& signature, std::string_view bytes,
                                 std::string_view where) {
  for (const Revocation& one : trust.revoked) {
    if (one.key.empty() || shown_key(one.key) != key_id_text(signature.key_id)) continue;
    if (is_key_id(one.key)) return &one;
    const auto key = parse_public_key(one.key, where);
    if (key.ok() && verify_signature(signature, *key, bytes, where).ok()) return &one;
  }
  return nullptr;
}

// The one of `keys` that made the signature; null if none of them has its id. Several keys may have one id.
Result<const TrustedKey*> signer_among(const std::vector<const TrustedKey*>& keys, const Trust& trust,
                                       const FileSignature& signature, std::string_view bytes, std::string_view where) {
  const std::string key_id = key_id_text(signature.key_id);
  if (const Revocation* revoked = revoked_signer(trust, signature, bytes, where); revoked != nullptr)
    return revoked_key(*revoked, key_id, where);
  std::optional<Error> fault;
  for (const TrustedKey* one : keys) {
    if (one->key.id != signature.key_id) continue;
    const auto verified = verify_signature(signature, one->key, bytes, where);
    if (verified.ok()) return one;
    fault = verified.error();
  }
  if (fault) return *std::move(fault);
  return nullptr;
}

}  // namespace

Result<TrustedKey> find_signer(const Trust& trust, const FileSignature& signature, std::string_view bytes,
                               std::string_view where) {
  std::vector<const TrustedKey*> keys;
  for (const TrustedKey& key : trust.keys) keys.push_back(&key);
  const TrustedKey* signer = TRY(signer_among(keys, trust, signature, bytes, where));
  if (signer != nullptr) return *signer;
  return broken_rule(PackRule::kOwner, "the key " + key_id_text(signature.key_id) + " that signed it is not trusted",
                     where, "if it is the publisher's key, run `mortise pack trust KEY.pub --ids 'acme.*'`");
}

Result<TrustedKey> check_signer(const Trust& trust, std::string_view signature_text, std::string_view bytes,
                                std::string_view pack_id, std::string_view pack_version, std::string_view where) {
  const FileSignature signature = TRY(parse_signature(signature_text, where));
  const auto owners = trust.owners(pack_id);
  const TrustedKey* signer = TRY(signer_among(owners, trust, signature, bytes, where));
  if (signer == nullptr) {
    std::vector<std::string> names;
    for (const TrustedKey* owner : owners) names.push_back(owner->key.id_text());
    return broken_rule(PackRule::kOwner,
                       "the key " + key_id_text(signature.key_id) + " that signed it is not trusted for " +
                           quote(pack_id) + (names.empty() ? "; no key is" : "; trusted is " + join(names, ", ")),
                       where,
                       "if it is the publisher's key, run `mortise pack trust KEY.pub --ids '" +
                           std::string(pack_id.substr(0, pack_id.find('.'))) + ".*'`");
  }
  const std::string id = comment_field(signature.comment, "pack"),
                    version = comment_field(signature.comment, "version");
  if ((!id.empty() && id != pack_id) || (!version.empty() && !pack_version.empty() && version != pack_version))
    return broken_rule(PackRule::kComment, "its signed comment is of " + id + "@" + version, where,
                       "get the archive and its .minisig again from the publisher");
  return *signer;
}

}  // namespace mortise
