// Reads, checks and writes the signed list of an index.
#include "packs/index.h"

#include <fmt/core.h>

#include <algorithm>
#include <optional>
#include <set>

#include "foundation/base/rename_target.h"
#include "foundation/base/text.h"
#include "foundation/formats/json.h"
#include "foundation/formats/sha256.h"
#include "packs/archive.h"
#include "packs/description.h"
#include "packs/json_text.h"
#include "packs/rules.h"
#include "plugin/pack/semver.h"

namespace mortise {
namespace {

constexpr size_t kMaxIndexedPacks = 20'000;

Error bad_index(PackRule rule, std::string what, std::string_view where, std::string next) {
  return broken_rule(rule, std::move(what), where, std::move(next));
}

Error malformed(std::string what, std::string_view where) {
  return bad_index(PackRule::kIndex, std::move(what), where,
                   "tell the publisher: `mortise pack publish` writes it again");
}

Result<> only_keys(const Json& object, std::initializer_list<std::string_view> keys, std::string_view where) {
  if (!object.is_object()) return malformed("an entry is not an object", where);
  for (const auto& [key, value] : object.items()) {
    if (std::find(keys.begin(), keys.end(), key) == keys.end())
      return malformed("there is no key " + quote(key), where);
  }
  return {};
}

Result<uint64_t> count_of(const Json& object, std::string_view key, std::string_view where) {
  const Json* value = json_find(object, key);
  if (value == nullptr || !value->is_number_unsigned() || value->get<uint64_t>() > INT64_MAX)
    return malformed(quote(key) + " must be a whole number", where);
  return value->get<uint64_t>();
}

Result<IndexedPack> parse_pack(const Json& object, std::string_view where) {
  TRY(only_keys(object, {"id", "version", "file", "size", "sha256"}, where));
  IndexedPack pack{text_or_empty(object, "id"), text_or_empty(object, "version"), text_or_empty(object, "file"),
                   text_or_empty(object, "sha256"), 0};
  pack.size = TRY(count_of(object, "size", where));
  if (pack.size > kMaxArchiveBytes)
    return malformed("an archive is larger than " + format_bytes(kMaxArchiveBytes), where);
  TRY(check_pack_id(pack.id, where));
  TRY(check_pack_version(pack.version, where));
  if (pack.file != fmt::format("{}-{}.mpack", pack.id, pack.version))
    return malformed(fmt::format("the file of {}@{} cannot be {}", pack.id, pack.version, quote(pack.file)), where);
  if (!is_sha256_text(pack.sha256)) return malformed("a sha256 is not 64 hex digits", where);
  return pack;
}

Result<IndexedKey> parse_key(const Json& object, std::string_view where) {
  TRY(only_keys(object, {"public", "ids"}, where));
  IndexedKey key;
  auto parsed = parse_public_key(text_or_empty(object, "public"), where);
  if (!parsed.ok()) return malformed(parsed.error().what, where);
  key.key = *parsed;
  const Json* ids = json_find(object, "ids");
  if (ids == nullptr || !ids->is_array()) return malformed("'ids' must be a list", where);
  for (const Json& id : *ids) {
    if (!id.is_string() || !is_id_pattern(id.get<std::string>()))
      return malformed("an id is not a pattern of ids", where);
    key.ids.push_back(id.get<std::string>());
  }
  return key;
}

Result<SignerSet> parse_signers(const Json& object, std::string_view where) {
  TRY(only_keys(object, {"threshold", "keys"}, where));
  SignerSet set;
  set.threshold = static_cast<uint32_t>(std::min<uint64_t>(TRY(count_of(object, "threshold", where)), kMaxSigners + 1));
  const Json* keys = json_find(object, "keys");
  if (keys == nullptr || !keys->is_array() || keys->size() > kMaxSigners)
    return malformed("'keys' of the signers must be a list of at most " + std::to_string(kMaxSigners), where);
  for (const Json& key : *keys) {
    const auto parsed = parse_public_key(key.is_string() ? key.get<std::string>() : std::string(), where);
    if (!parsed.ok()) return malformed(parsed.error().what, where);
    set.keys.push_back(*parsed);
  }
  if (const std::string fault = signer_set_fault(set); !fault.empty()) return malformed(fault, where);
  return set;
}

Result<Revocation> parse_revocation(const Json& object, std::string_view where) {
  TRY(only_keys(object, {"key", "sha256", "id", "reason"}, where));
  Revocation out{text_or_empty(object, "key"), text_or_empty(object, "sha256"), text_or_empty(object, "id"),
                 text_or_empty(object, "reason"), false};
  if (out.key.empty() == out.sha256.empty() || out.id.empty() != out.sha256.empty())
    return malformed("a revocation names a key, or a sha256 and its id", where);
  if (!out.key.empty()) {  // its id alone would meet the key of anybody who chose the same one
    const auto key = parse_public_key(out.key, where);
    if (!key.ok()) return malformed("a revoked key is not written as a whole", where);
    out.key = key->text();
  }
  return out;
}

template <class Item, class Parse>
Result<> parse_list(const Json& json, std::string_view key, std::string_view where, std::vector<Item>& out,
                    Parse parse) {
  const Json* list = json_find(json, key);
  if (list == nullptr) return {};
  if (!list->is_array() || list->size() > kMaxIndexedPacks)
    return malformed(fmt::format("{} must be a list of at most {}", quote(key), kMaxIndexedPacks), where);
  for (const Json& item : *list) out.push_back(TRY(parse(item, where)));
  return {};
}

using Publishers = std::vector<const Publisher*>;  // the publishers in a Trust

bool has(const Publishers& list, const Publisher* one) {
  return std::find(list.begin(), list.end(), one) != list.end();
}

// May those who signed speak for a pattern of ids? One of them covers the pattern, and nobody else owns some of these
// ids by a pattern that is more specific: a key for "*" must not hand "acme.*" to anybody if Acme's own key is trusted.
bool speaks_for(const Trust& trust, const Publishers& signers, const std::string& pattern) {
  std::optional<size_t> own;  // weight of the best
  for (const Publisher* one : signers) {
    for (const std::string& ids : one->ids)
      if (pattern_covers(ids, pattern)) own = std::max(own.value_or(0), pattern_weight(ids));
  }
  if (!own) return false;
  for (const Publisher& one : trust.publishers) {
    if (has(signers, &one)) continue;
    for (const std::string& ids : one.ids) {
      const bool overlaps = pattern_covers(ids, pattern) || pattern_covers(pattern, ids);
      if (overlaps && pattern_weight(ids) > *own && pattern_weight(pattern) >= pattern_weight(ids)) return false;
    }
  }
  return true;
}

// Rule P20: those who signed speak for their own ids only.
Result<> check_speaker(const Trust& trust, const PackIndex& index, const Publishers& signers,
                       const std::string& where) {
  const auto foreign = [&](const std::string& what) {
    std::vector<std::string> names;
    for (const Publisher* one : signers) names.push_back(one->signers.text());
    return bad_index(PackRule::kIndex,
                     fmt::format("the index is signed by {}, who may not speak for {}", join(names, " and "), what),
                     where, "tell the publisher; trust the key for more ids if that is what you want");
  };
  std::set<std::string> seen;
  for (const IndexedPack& pack : index.packs) {
    const auto owners = trust.owners(pack.id);
    if (std::none_of(owners.begin(), owners.end(), [&](const Publisher* owner) { return has(signers, owner); }))
      return foreign(quote(pack.id));
    if (!seen.insert(fmt::format("{}@{}", pack.id, pack.version)).second)
      return malformed("a pack is listed twice", where);
  }
  for (const IndexedKey& key : index.keys) {
    for (const std::string& pattern : key.ids)
      if (!speaks_for(trust, signers, pattern)) return foreign("a key of " + quote(pattern));
  }
  for (const Revocation& revoked : index.revoked) {
    if (!revoked.id.empty() && !speaks_for(trust, signers, revoked.id))
      return foreign("a revocation of " + quote(revoked.id));
    for (const Publisher& one : trust.publishers) {
      const auto keys = one.all_keys();
      if (std::none_of(keys.begin(), keys.end(), [&](const auto& key) { return key.text() == revoked.key; })) continue;
      for (const std::string& pattern : one.ids)
        if (!speaks_for(trust, signers, pattern)) return foreign("a revocation of a key of " + quote(pattern));
    }
  }
  return {};
}

// Rule P25 for the signers that the index names: they must be able to sign the next one. Keys that this index revokes
// do not count.
Result<> check_new_signers(const Trust& trust, const PackIndex& index, const std::vector<FileSignature>& signatures,
                           const std::string& text, const std::string& where) {
  if (index.signers.keys.empty()) return {};
  Trust after = trust;
  after.revoked.insert(after.revoked.end(), index.revoked.begin(), index.revoked.end());
  const auto keys = keys_that_signed(index.signers.keys, after, signatures, text);
  if (keys.size() >= index.signers.threshold) return {};
  return bad_index(
      PackRule::kThreshold,
      fmt::format("the index says that {} sign it, but only {} of them did", index.signers.text(), keys.size()), where,
      "tell the publisher: `mortise pack publish --add-signature` adds what is missing");
}

// What was seen last of an index: rules P21 and P22.
Result<> check_age(Env& env, const PackPlaces& places, const std::string& place, const PackIndex& index,
                   const std::string& digest) {
  const int64_t now = env.wall_time_ns() / 1'000'000'000;
  if (index.expires <= now)
    return bad_index(PackRule::kFreeze,
                     fmt::format("the index expired {} days ago: it is old, or somebody keeps newer ones from you",
                                 (now - index.expires) / 86'400),
                     place, "tell the publisher, and check this machine's clock");
  const Path memory = places.user_config / "index" / (sha256_hex(place).substr(0, 32) + ".json");
  if (env.exists(memory)) {
    const Json seen = TRY(read_json_file(env, memory, {.error_kind = ErrorKind::kPlugin}));
    const uint64_t version = TRY(count_of(seen, "version", memory.string()));
    if (index.version < version)
      return bad_index(PackRule::kRollback,
                       fmt::format("the index has version {}, but version {} was seen before", index.version, version),
                       place, "somebody may be showing you an old one: tell the publisher");
    if (index.version == version && text_or_empty(seen, "sha256") != digest)
      return bad_index(PackRule::kRollback, "there are two different indexes of version " + std::to_string(version),
                       place, "tell the publisher: one of them is forged, or a version was used twice");
  }
  TRY(create_dirs_synced(env, memory.parent_path()));
  return write_file_atomic(env, memory,
                           dump_json({{"place", place}, {"version", index.version}, {"sha256", digest}}, 2) + "\n");
}

// The signers that the index names take the place of those who signed it.
void rotate(const PackIndex& index, const Publishers& signers, const std::string& place, Trust& trust,
            std::vector<std::string>& news) {
  if (index.signers.keys.empty()) return;
  std::vector<Publisher> added;  // next to those of the machine, whose file only its administrator changes
  for (Publisher& one : trust.publishers) {
    if (!has(signers, &one) || one.signers.same_as(index.signers)) continue;
    const auto is_there = [&](const Publisher& other) {
      return !other.of_machine && other.ids == one.ids && other.signers.same_as(index.signers);
    };
    if (one.of_machine && std::any_of(trust.publishers.begin(), trust.publishers.end(), is_there)) continue;
    news.push_back(fmt::format("packs of {} are now signed by {}, before by {}", join(one.ids, ", "),
                               index.signers.text(), one.signers.text()));
    if (one.of_machine) {
      added.push_back({index.signers, one.ids, index.name, is_url(place) ? place : "", false});
      continue;
    }
    std::vector<SigningPublicKey> before = one.all_keys();
    std::erase_if(before, [&](const SigningPublicKey& key) { return index.signers.contains(key); });
    one.former = std::move(before);
    one.signers = index.signers;
  }
  trust.publishers.insert(trust.publishers.end(), added.begin(), added.end());
}

// Signers, keys and revocations that are new here. `signers` point into `trust`.
std::vector<std::string> take_over(const PackIndex& index, const Publishers& signers, const std::string& place,
                                   Trust& trust) {
  std::vector<std::string> news;
  rotate(index, signers, place, trust, news);
  for (const IndexedKey& key : index.keys) {
    const SignerSet alone = one_signer(key.key);
    const bool known = std::any_of(trust.publishers.begin(), trust.publishers.end(),
                                   [&](const Publisher& one) { return one.signers.same_as(alone); });
    if (known || trust.revocation_of_key(key.key.text()) != nullptr) continue;
    trust.publishers.push_back({alone, key.ids, index.name, is_url(place) ? place : "", false});
    news.push_back(fmt::format("the key {} is now trusted for {}", key.key.id_text(), join(key.ids, ", ")));
  }
  const std::vector<SigningPublicKey> keys = trust.keys();
  for (const Revocation& revoked : index.revoked) {
    const auto same = [&](const Revocation& one) {
      return one.key == revoked.key && one.sha256 == revoked.sha256 && (one.id.empty() || one.id == revoked.id);
    };
    if (std::any_of(trust.revoked.begin(), trust.revoked.end(), same)) continue;
    // A key that nobody trusts here needs no revocation, and its owner is not known: this publisher may be another.
    const auto is_it = [&](const SigningPublicKey& key) { return key.text() == revoked.key; };
    if (!revoked.key.empty() && std::none_of(keys.begin(), keys.end(), is_it)) continue;
    trust.revoked.push_back(revoked);
    news.push_back(fmt::format(
        "{} is revoked{}", revoked.key.empty() ? "an archive of " + revoked.id : "the key " + shown_key(revoked.key),
        revoked.reason.empty() ? "" : ": " + revoked.reason));
  }
  return news;
}

}  // namespace

Result<const IndexedPack*> PackIndex::newest(std::string_view id, std::string_view range) const {
  std::optional<VersionRange> wanted;
  if (!range.empty()) wanted = TRY(VersionRange::parse(range));
  const IndexedPack* best = nullptr;
  std::optional<SemVer> best_version;
  for (const IndexedPack& pack : packs) {
    const auto number = SemVer::parse(pack.version);
    if (pack.id != id || !number) continue;
    if (wanted ? !wanted->matches(*number) : !number->prerelease.empty()) continue;
    if (best != nullptr && compare(*number, *best_version) <= 0) continue;
    best = &pack;
    best_version = number;
  }
  return best;
}

Result<PackIndex> parse_index(std::string_view text, std::string_view where) {
  auto parsed =
      parse_json(text, where, {.limits = {.max_bytes = kMaxPackIndexBytes}, .error_kind = ErrorKind::kPlugin});
  if (!parsed.ok()) return malformed(parsed.error().what, parsed.error().where);
  const Json& json = *parsed;
  TRY(only_keys(json, {"format", "name", "version", "created", "expires", "packs", "signers", "keys", "revoked"},
                where));
  if (TRY(count_of(json, "format", where)) != 1) return malformed("this program reads indexes of format 1", where);
  PackIndex index;
  index.name = text_or_empty(json, "name");
  index.version = TRY(count_of(json, "version", where));
  index.created = static_cast<int64_t>(TRY(count_of(json, "created", where)));
  index.expires = static_cast<int64_t>(TRY(count_of(json, "expires", where)));
  TRY(parse_list(json, "packs", where, index.packs, parse_pack));
  if (const Json* signers = json_find(json, "signers"); signers != nullptr)
    index.signers = TRY(parse_signers(*signers, where));
  TRY(parse_list(json, "keys", where, index.keys, parse_key));
  TRY(parse_list(json, "revoked", where, index.revoked, parse_revocation));
  return index;
}

std::string index_text(const PackIndex& index) {
  Json json = {{"format", 1},
               {"name", index.name},
               {"version", index.version},
               {"created", index.created},
               {"expires", index.expires},
               {"packs", Json::array()},
               {"keys", Json::array()},
               {"revoked", Json::array()}};
  for (const IndexedPack& pack : index.packs)
    json["packs"].push_back({{"id", pack.id},
                             {"version", pack.version},
                             {"file", pack.file},
                             {"size", pack.size},
                             {"sha256", pack.sha256}});
  if (!index.signers.keys.empty()) {
    json["signers"] = {{"threshold", index.signers.threshold}, {"keys", Json::array()}};
    for (const SigningPublicKey& key : index.signers.keys) json["signers"]["keys"].push_back(key.text());
  }
  for (const IndexedKey& key : index.keys) json["keys"].push_back({{"public", key.key.text()}, {"ids", key.ids}});
  for (const Revocation& one : index.revoked) {
    Json entry = one.key.empty() ? Json{{"sha256", one.sha256}, {"id", one.id}} : Json{{"key", one.key}};
    entry["reason"] = one.reason;
    json["revoked"].push_back(std::move(entry));
  }
  return dump_json(json, 1) + "\n";
}

std::string index_comment(const PackIndex& index, Env& env) {
  return fmt::format("timestamp:{}\tfile:{}\thashed\tversion:{}", env.wall_time_ns() / 1'000'000'000, kPackIndexFile,
                     index.version);
}

Result<CheckedIndex> read_index(Env& env, const PackPlaces& places, const std::string& place, FileSource& source,
                                Trust& trust) {
  const std::string address = TRY(normal_place(place));
  const std::string where = fmt::format("{}/{}", address, kPackIndexFile);
  const std::string text = TRY(source.get(kPackIndexFile, kMaxPackIndexBytes));
  const std::string signature_text = TRY(source.get(std::string(kPackIndexFile) + ".minisig", kMaxSignatureFileBytes));
  const auto signatures = TRY(parse_signatures(signature_text, where + ".minisig"));
  // Another command may have changed what is trusted, or have seen a newer index, while this one was fetched.
  const FolderLock held = TRY(lock_trust(env, places));
  trust = TRY(read_trust(env, places));
  CheckedIndex out;
  const Publishers signers = TRY(find_signers(trust, signatures, text, where));
  out.index = TRY(parse_index(text, where));  // nothing of it is read before the signatures were good
  TRY(check_speaker(trust, out.index, signers, where));
  TRY(check_new_signers(trust, out.index, signatures, text, where));
  TRY(check_age(env, places, address, out.index, sha256_hex(text)));
  out.news = take_over(out.index, signers, address, trust);
  if (!out.news.empty()) TRY(write_trust(env, places, trust));
  return out;
}

Result<IndexedArchive> fetch_indexed(FileSource& source, const IndexedPack& pack, const std::string& place) {
  IndexedArchive out;
  out.bytes = TRY(source.get(pack.file, pack.size));
  if (out.bytes.size() != pack.size || sha256_hex(out.bytes) != pack.sha256)
    return bad_index(PackRule::kTarget, "the file is not the one that the index names",
                     fmt::format("{}/{}", place, pack.file),
                     "try again later: the publisher may be replacing it; tell the publisher if it stays so");
  bool missing = false;
  out.signature = TRY(source.get(pack.file + ".minisig", kMaxSignatureFileBytes, &missing));
  return out;
}

}  // namespace mortise
