// `mortise pack outdated`: an index compared with what is installed.
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
