// Reads trust.toml and policy.toml, and writes the user's trust.toml.
#include "packs/trust.h"

#include <fmt/core.h>
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

Error as_config(Error error) {
  error.kind = ErrorKind::kConfig;
  return error;
}

Error config_fault(std::string what, std::string_view where) {
  return {ErrorKind::kConfig, std::move(what), std::string(where), "correct the file"};
}

Result<std::vector<SigningPublicKey>> read_keys(const TomlFields& fields, const char* name, const std::string& where) {
  std::vector<std::string> texts;
  TRY(fields.texts(name, texts));
  std::vector<SigningPublicKey> keys;
  for (const std::string& text : texts) keys.push_back(TRY(parse_public_key(text, where)));
  return keys;
}

Result<SignerSet> read_signers(const TomlFields& fields, const std::string& where) {
  SignerSet set;
  set.keys = TRY(read_keys(fields, "keys", where));
  uint64_t threshold = 1;
  TRY(fields.number("threshold", threshold));
  set.threshold = static_cast<uint32_t>(std::min<uint64_t>(threshold, kMaxSigners + 1));
  const std::string fault = signer_set_fault(set);
  if (!fault.empty()) return config_fault(fault, where);
  return set;
}

Result<Publisher> read_publisher(const toml::table& table, const std::string& file) {
  const TomlFields fields(table, file, PackRule::kOwner);
  const std::string where = toml_where(file, table);
  TRY(fields.only({"keys", "threshold", "former", "ids", "name", "index"}));
  Publisher one;
  one.signers = TRY(read_signers(fields, where));
  one.former = TRY(read_keys(fields, "former", where));
  TRY(fields.texts("ids", one.ids));
  TRY(fields.text("name", one.name));
  TRY(fields.text("index", one.index));
  if (!one.index.empty()) {
    auto place = normal_place(one.index);
    if (!place.ok()) return config_fault(std::move(place).error().what, where);
    if (!is_url(one.index) && !Path(one.index).is_absolute())
      return config_fault(fmt::format("the folder {} of an index must be named from / on", quote(one.index)), where);
    one.index = *std::move(place);
  }
  for (const std::string& pattern : one.ids) {
    if (!is_id_pattern(pattern)) return config_fault(quote(pattern) + " is not a pattern of ids such as acme.*", where);
  }
  return one;
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
  TRY(fields.only({"publisher", "revoked"}));
  for (const toml::table* one : TRY(fields.tables("publisher"))) {
    trust.publishers.push_back(TRY(read_publisher(*one, file)));
    trust.publishers.back().of_machine = of_machine;
  }
  for (const toml::table* one : TRY(fields.tables("revoked"))) {
    trust.revoked.push_back(TRY(read_revocation(*one, file)));
    trust.revoked.back().of_machine = of_machine;
  }
  return {};
}

std::string toml_keys(const std::vector<SigningPublicKey>& keys) {
  std::vector<std::string> texts;
  for (const SigningPublicKey& key : keys) texts.push_back(key.text());
  return toml_list(texts);
}

std::vector<KeyId> ids_of(const SignerSet& set) {
  std::vector<KeyId> ids;
  for (const SigningPublicKey& key : set.keys) ids.push_back(key.id);
  std::sort(ids.begin(), ids.end());
  return ids;
}

}  // namespace

bool SignerSet::contains(const SigningPublicKey& key) const {
  return std::find(keys.begin(), keys.end(), key) != keys.end();
}

bool SignerSet::same_as(const SignerSet& other) const {
  return threshold == other.threshold && keys.size() == other.keys.size() &&
         std::all_of(keys.begin(), keys.end(), [&](const SigningPublicKey& key) { return other.contains(key); });
}

std::string SignerSet::text() const {
  if (keys.size() == 1) return "the key " + shown_keys(keys);
  return fmt::format("{} of the keys {}", threshold, shown_keys(keys));
}

SignerSet one_signer(const SigningPublicKey& key) {
  SignerSet set;
  set.keys = {key};
  return set;
}

std::string signer_set_fault(const SignerSet& set) {
  if (set.keys.empty() || set.keys.size() > kMaxSigners)
    return fmt::format("the signers must be from 1 to {} keys, not {}", kMaxSigners, set.keys.size());
  if (set.threshold < 1 || set.threshold > set.keys.size())
    return fmt::format("the signers are {}{}, so the threshold must be from 1 to {}", set.keys.size(),
                       set.keys.size() == 1 ? " key" : " keys", set.keys.size());
  const std::vector<KeyId> ids = ids_of(set);
  if (const auto twice = std::adjacent_find(ids.begin(), ids.end()); twice != ids.end())
    return fmt::format("the signers have the key id {} twice, and a key counts once", key_id_text(*twice));
  for (size_t i = 0; i < set.keys.size(); ++i) {
    for (size_t j = 0; j < i; ++j)
      if (set.keys[i].key == set.keys[j].key)
        return fmt::format("the signers {} and {} are the same key, and a key counts once", set.keys[j].id_text(),
                           set.keys[i].id_text());
  }
  return "";
}

std::vector<SigningPublicKey> Publisher::all_keys() const {
  std::vector<SigningPublicKey> out = signers.keys;
  out.insert(out.end(), former.begin(), former.end());
  return out;
}

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

std::vector<const Publisher*> Trust::owners(std::string_view pack_id) const {
  std::vector<const Publisher*> out;
  size_t best = 0;
  for (const Publisher& one : publishers) {
    for (const std::string& pattern : one.ids) {
      if (!id_matches(pattern, pack_id)) continue;
      const size_t weight = pattern_weight(pattern);
      if (weight < best) continue;
      if (weight > best) out.clear();
      best = weight;
      if (out.empty() || out.back() != &one) out.push_back(&one);
    }
  }
  return out;
}

std::vector<SigningPublicKey> Trust::keys() const {
  std::vector<SigningPublicKey> out;
  for (const Publisher& one : publishers)
    for (const SigningPublicKey& key : one.all_keys()) out.push_back(key);
  return out;
}

std::string shown_key(std::string_view key) {
  const auto whole = parse_public_key(key, "");
  return whole.ok() ? whole->id_text() : std::string(key);
}

std::string shown_keys(const std::vector<SigningPublicKey>& keys) {
  std::vector<std::string> ids;
  for (const SigningPublicKey& key : keys) ids.push_back(key.id_text());
  return join(ids, ", ");
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
  for (const Publisher& one : trust.publishers) {
    if (one.of_machine) continue;
    text += fmt::format("\n[[publisher]] # {}\nkeys = {}\nthreshold = {}\nids = {}\n", shown_keys(one.signers.keys),
                        toml_keys(one.signers.keys), one.signers.threshold, toml_list(one.ids));
    if (!one.former.empty()) text += fmt::format("former = {}\n", toml_keys(one.former));
    if (!one.name.empty()) text += fmt::format("name = {}\n", toml_quoted(one.name));
    if (!one.index.empty()) text += fmt::format("index = {}\n", toml_quoted(one.index));
  }
  for (const Revocation& one : trust.revoked) {
    if (one.of_machine) continue;
    text += "\n[[revoked]]\n";
    text += one.key.empty() ? "sha256 = " + toml_quoted(one.sha256) : "key = " + toml_quoted(one.key);
    if (!one.id.empty()) text += "\nid = " + toml_quoted(one.id);
    text += fmt::format("\nreason = {}\n", toml_quoted(one.reason));
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
  return Error{ErrorKind::kConfig, fmt::format("the trust {} is not any, locked or signed", quote(text)),
               std::string(where), "choose one of these"};
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

}  // namespace mortise
