// `mortise pack publish|outdated`: an index written and compared with what is installed.
#include <algorithm>
#include <iostream>
#include <map>
#include <optional>
#include <set>

#include "command_line.h"
#include "foundation/base/shown_text.h"
#include "foundation/base/text.h"
#include "pack_command.h"
#include "packs/index.h"
#include "plugin/pack/semver.h"

namespace mortise {

namespace po = boost::program_options;

namespace {

constexpr int64_t kDaySeconds = 86'400;
PackWords list_of(const po::variables_map& given, const char* name) {
  return given.count(name) == 0 ? PackWords() : given[name].as<PackWords>();
}

// "KEY.pub=acme.*,acme2.*"
Result<IndexedKey> next_key(const std::string& word) {
  const size_t equals = word.rfind('=');
  if (equals == std::string::npos) return pack_usage_error("--next-key takes KEY.pub=acme.*");
  const std::string path = word.substr(0, equals);
  const std::string text = TRY(default_env().read_file(path, kMaxSigningKeyBytes));
  IndexedKey key;
  key.key = TRY(parse_public_key(text, path));
  for (const std::string_view pattern : split(std::string_view(word).substr(equals + 1), ',')) {
    if (!is_id_pattern(pattern)) return pack_usage_error(quote(pattern) + " is no pattern of ids such as acme.*");
    key.ids.emplace_back(pattern);
  }
  return key;
}

// A key (its id, its text or its file), or an archive that was published.
Result<Revocation> revocation(const std::string& word, const std::string& reason) {
  Revocation out;
  out.reason = reason;
  if (parse_key_id(word)) {
    out.key = word;  // publish_index knows whose id it is
    return out;
  }
  auto key = find_key(default_env(), word, {});
  if (key.ok()) {
    out.key = key->text();
    return out;
  }
  const PackArchive archive = TRY(read_pack_archive(default_env(), word));
  out.sha256 = archive.sha256;
  out.id = archive.description.id;
  return out;
}

// Reads each index once, also one that cannot be read.
class Indexes {
 public:
  Indexes(const PackPlaces& places, Trust& trust) : places_(places), trust_(trust) {}
  // Null for an index that cannot be read.
  const PackIndex* at(const std::string& place) {
    const auto known = indexes_.find(place);
    if (known != indexes_.end()) return &known->second.checked.index;
    if (bad_.count(place) != 0) return nullptr;
    auto opened = open_index(places_, place, trust_);
    if (opened.ok()) return &indexes_.emplace(place, *std::move(opened)).first->second.checked.index;
    bad_.insert(place);
    errors.push_back(std::move(opened).error());
    return nullptr;
  }
  std::vector<Error> errors;

 private:
  const PackPlaces& places_;
  Trust& trust_;
  std::map<std::string, IndexedSource> indexes_;
  std::set<std::string> bad_;
};

// What an index has for one pack, next to what is installed. Null: not installed.
Result<Json> outdated_row(const std::string& id, const InstalledPack* newest, const po::variables_map& given,
                          const Trust& trust, Indexes& indexes) {
  Json row = {{"id", id}, {"installed", newest == nullptr ? Json() : Json(newest->version)}, {"newest", nullptr}};
  const auto place = index_of(given, trust, id);
  if (!place.ok()) {
    row["note"] = place.error().what;
    return row;
  }
  row["index"] = *place;
  const PackIndex* index = indexes.at(*place);
  if (index == nullptr) {
    row["note"] = "its index cannot be read";
    return row;
  }
  const IndexedPack* found = TRY(index->newest(id, ""));
  const auto has = newest == nullptr ? std::nullopt : SemVer::parse(newest->version);
  if (found != nullptr) row["newest"] = found->version;
  row["outdated"] = found != nullptr && (!has || compare(*SemVer::parse(found->version), *has) > 0);
  if (newest != nullptr && trust.revocation_of_pack(newest->sha256, id) != nullptr) row["note"] = "revoked";
  return row;
}

void print_rows(const Json& rows) {
  const auto shown = [](const Json& value) {
    return value.is_string() ? one_line(value.get<std::string>()) : std::string("-");
  };
  for (const Json& row : rows) {
    std::cout << shown(row["id"]) << "  installed " << shown(row["installed"]) << "  newest " << shown(row["newest"]);
    if (row.contains("note")) std::cout << "  (" << shown(row["note"]) << ")";
    std::cout << "\n";
  }
}

}  // namespace

Result<> pack_publish(Arguments args) {
  po::options_description options("options", kHelpWidth);
  options.add_options()("to", po::value<std::string>(), "the folder of the index; made if it is missing")(
      "secret", po::value<std::string>(), "the secret key that signs the index")(
      "password-file", po::value<std::string>(), "file with the password of the secret key")(
      "name", po::value<std::string>()->default_value(""), "the publisher's name")(
      "days", po::value<int64_t>()->default_value(90), "how long the index is good: publish again before it expires")(
      "revoke", po::value<PackWords>()->composing(),
      "a key (its id or KEY.pub) or an archive: nobody is to use it any more")(
      "reason", po::value<std::string>()->default_value(""), "why, with --revoke")(
      "next-key", po::value<PackWords>()->composing(), "KEY.pub=acme.*: a further key that readers are to trust")(
      "previous-key", po::value<std::string>(), "OLD.pub: the key that signed the index so far, if you replace it")(
      "json", "the result as JSON")("help,h", "this text");
  const auto given = TRY(pack_words(args, "publish [F.mpack ...] --to FOLDER --secret S [--days N]", options));
  if (!given) return {};
  const std::string folder = option_text(*given, "to");
  if (folder.empty()) return pack_usage_error("--to is missing");
  PublishRequest request;
  for (const std::string& word : words_of(*given)) request.archives.emplace_back(word);
  for (const std::string& word : list_of(*given, "next-key")) request.keys.push_back(TRY(next_key(word)));
  for (const std::string& word : list_of(*given, "revoke"))
    request.revoked.push_back(TRY(revocation(word, option_text(*given, "reason"))));
  const auto days = (*given)["days"].as<int64_t>();
  if (days < 1 || days > 3650) return pack_usage_error("--days must be from 1 to 3650");
  request.lifetime_s = days * kDaySeconds;
  request.name = option_text(*given, "name");
  if (const std::string previous = option_text(*given, "previous-key"); !previous.empty()) {
    const std::string text = TRY(default_env().read_file(previous, kMaxSigningKeyBytes));
    request.previous = TRY(parse_public_key(text, previous));
  }
  const SigningSecretKey key = TRY(secret_key_of(*given));
  const PackIndex index = TRY(publish_index(default_env(), folder, key, request));
  if (given->count("json") != 0) {
    std::cout << index_text(index);
    return {};
  }
  std::cout << folder << ": version " << index.version << " with " << index.packs.size()
            << (index.packs.size() == 1 ? " pack" : " packs") << ", signed with " << key_id_text(key.id)
            << ", good for " << days << " days\n";
  return {};
}

Result<> pack_outdated(Arguments args) {
  po::options_description options("options", kHelpWidth);
  options.add_options()("index", po::value<std::string>(),
                        "https:// address or folder of an index; default: that of the trusted key")(
      "store", po::value<std::string>(), "the folder of installed packs; default: the user's")("json", "as JSON")(
      "help,h", "this text");
  const auto given = TRY(pack_words(args, "outdated [ID ...] [--index URL] [--json]", options));
  if (!given) return {};
  const PackPlaces places = TRY(places_of(*given));
  Trust trust = TRY(read_trust(default_env(), places));
  const PackWords wanted = words_of(*given);
  std::vector<DamagedEntry> damaged;
  const auto packs = TRY(PackStore(default_env(), places.store).list(&damaged));
  PackWords ids = wanted;
  if (ids.empty())
    for (const InstalledPack& pack : packs)
      if (ids.empty() || ids.back() != pack.id) ids.push_back(pack.id);
  Indexes indexes(places, trust);
  Json rows = Json::array();
  for (const std::string& id : ids) {  // the newest version of each id comes first
    const auto newest =
        std::find_if(packs.begin(), packs.end(), [&](const InstalledPack& pack) { return pack.id == id; });
    rows.push_back(TRY(outdated_row(id, newest == packs.end() ? nullptr : &*newest, *given, trust, indexes)));
  }
  std::vector<Error> errors = std::move(indexes.errors);
  for (DamagedEntry& one : damaged) {
    const bool is_asked = wanted.empty() || std::find(wanted.begin(), wanted.end(), one.id) != wanted.end();
    if (is_asked) errors.push_back(std::move(one.error));
  }
  if (given->count("json") != 0) {
    std::cout << dump_json({{"packs", rows}}, 2) << "\n";
  } else {
    print_rows(rows);
    if (rows.empty()) std::cout << "no pack is installed\n";
  }
  return all_of(errors);
}

}  // namespace mortise
