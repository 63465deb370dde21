// `mortise pack trust`: whose packs are taken.
#include <fmt/core.h>
#include <algorithm>
#include <iostream>

#include "command_line.h"
#include "foundation/base/choice.h"
#include "foundation/base/log.h"
#include "foundation/base/shown_text.h"
#include "foundation/base/text.h"
#include "pack_command.h"

namespace mortise {

namespace po = boost::program_options;

namespace {

bool is_whole(const std::string& key) { return !key.empty() && !parse_key_id(key); }

Json keys_json(const std::vector<SigningPublicKey>& keys) {
  Json out = Json::array();
  for (const SigningPublicKey& key : keys) out.push_back({{"key", key.id_text()}, {"public", key.text()}});
  return out;
}

Json trust_json(const Trust& trust) {
  Json out = {{"publishers", Json::array()}, {"revoked", Json::array()}};
  for (const Publisher& one : trust.publishers)
    out["publishers"].push_back({{"keys", keys_json(one.signers.keys)},
                                 {"threshold", one.signers.threshold},
                                 {"former", keys_json(one.former)},
                                 {"ids", one.ids},
                                 {"name", one.name},
                                 {"index", one.index},
                                 {"of_machine", one.of_machine}});
  for (const Revocation& one : trust.revoked)
    out["revoked"].push_back({{"key", shown_key(one.key)},
                              {"public", is_whole(one.key) ? one.key : ""},
                              {"sha256", one.sha256},
                              {"id", one.id},
                              {"reason", one.reason}});
  return out;
}

// Names, places and reasons may come from an index: none may hold what a terminal would obey.
void print_trust(const Trust& trust) {
  const auto after = [](const char* space, const std::string& text) {
    return text.empty() ? std::string() : space + one_line(text);
  };
  for (const Publisher& one : trust.publishers) {
    const SignerSet& signers = one.signers;
    if (signers.keys.size() > 1) std::cout << signers.threshold << " of ";
    std::cout << shown_keys(signers.keys) << "  " << join(one.ids, ", ") << after("  ", one.name)
              << after("  ", one.index) << (one.of_machine ? "  (of this machine)" : "") << "\n";
  }
  if (trust.publishers.empty()) std::cout << "no key is trusted\n";
  for (const Revocation& one : trust.revoked)
    std::cout << "revoked " << (one.key.empty() ? one.sha256 : shown_key(one.key)) << after(": ", one.reason) << "\n";
}

struct TrustRequest {
  SignerSet signers;                       // to trust
  bool has_threshold = false;              // --threshold
  std::optional<PackWords> ids;            // --ids
  std::optional<std::string> name, index;  // --name, --index
  PackWords files;                         // KEY.pub ...
  std::string removed, revoked, reason;    // --remove, --revoke, --reason
};

// A publisher that is already trusted, by the same keys or some of them, keeps what the command does not give. A key of a
// publisher that has further keys is not trusted alone, because stealing this one key would then be enough.
Result<> add_publisher(const TrustRequest& request, Trust& trust) {
  Publisher added;
  for (const SigningPublicKey& key : request.signers.keys) {
    if (trust.revocation_of_key(key.text()) != nullptr)
      return Error{ErrorKind::kPlugin, fmt::format("the key {} is revoked", key.id_text()), join(request.files, " "),
                   "ask the publisher for the new key"};
  }
  const auto is_inside = [&](const SigningPublicKey& key) { return request.signers.contains(key); };
  std::vector<SigningPublicKey> former;
  for (const Publisher& one : trust.publishers) {
    const auto& keys = one.signers.keys;
    if (std::none_of(keys.begin(), keys.end(), is_inside)) continue;
    const bool all_inside = std::all_of(keys.begin(), keys.end(), is_inside);
    if (!all_inside)
      return Error{ErrorKind::kConfig,
                   fmt::format("you trust {}, and this names only some of these keys", one.signers.text()),
                   join(request.files, " "),
                   one.of_machine ? "name all of them: the trust.toml of this machine has them so"
                                  : "name all of them, or stop trusting them first with --remove KEY"};
    added = one;
    former.insert(former.end(), one.former.begin(), one.former.end());
  }
  const bool is_known = added.signers.keys.size() == request.signers.keys.size();
  if (!request.has_threshold && !is_known && request.signers.keys.size() > 1)
    return pack_usage_error("several keys are one publisher: say with --threshold how many of them must sign");
  const uint32_t before = added.signers.threshold;
  added.signers = request.signers;
  if (!request.has_threshold && is_known) added.signers.threshold = before;
  added.former = std::move(former);
  std::erase_if(added.former, is_inside);
  added.of_machine = false;
  if (request.ids) added.ids = *request.ids;
  if (added.ids.empty()) added.ids = {"*"};
  if (request.name) added.name = *request.name;
  if (request.index) added.index = *request.index;
  std::erase_if(trust.publishers, [&](const Publisher& one) {
    return !one.of_machine && std::all_of(one.signers.keys.begin(), one.signers.keys.end(), is_inside);
  });
  trust.publishers.push_back(std::move(added));
  return {};
}

// With all keys of its publisher.
Result<> remove_key(const std::string& word, Trust& trust) {
  std::vector<SigningPublicKey> own;
  for (const Publisher& one : trust.publishers)
    if (!one.of_machine) own.insert(own.end(), one.signers.keys.begin(), one.signers.keys.end());
  const auto key = find_key(default_env(), word, own);
  const size_t count =
      key.ok() ? std::erase_if(trust.publishers,
                               [&](const Publisher& one) { return !one.of_machine && one.signers.contains(*key); })
               : 0;
  if (count > 0) return {};
  const bool is_ambiguous = !key.ok() && std::any_of(own.begin(), own.end(), [&](const SigningPublicKey& one) {
    return one.id == parse_key_id(word);
  });
  if (is_ambiguous) return key.error();
  return Error{ErrorKind::kData, fmt::format("the key {} is not one that you trust", quote(word)), "mortise pack trust",
               "`mortise pack trust --list` shows them"};
}

// A trusted key is revoked as a whole. The id of a key that is not trusted counts for every key of this id.
Result<> revoke_key(const TrustRequest& request, Trust& trust) {
  const std::vector<SigningPublicKey> known = trust.keys();
  const auto key_id = parse_key_id(request.revoked);
  const bool is_known =
      std::any_of(known.begin(), known.end(), [&](const SigningPublicKey& one) { return key_id && one.id == *key_id; });
  Revocation out;
  out.reason = request.reason;
  out.key = key_id && !is_known ? key_id_text(*key_id) : TRY(find_key(default_env(), request.revoked, known)).text();
  std::erase_if(trust.revoked, [&](const Revocation& one) { return !one.of_machine && one.key == out.key; });
  trust.revoked.push_back(std::move(out));
  return {};
}

Result<TrustRequest> trust_request(const po::variables_map& given) {
  TrustRequest request;
  const auto words = words_of(given);
  request.removed = option_text(given, "remove");
  request.revoked = option_text(given, "revoke");
  request.reason = option_text(given, "reason");
  const size_t num_tasks =
      (words.empty() ? 0 : 1) + given.count("list") + given.count("remove") + given.count("revoke");
  if (num_tasks != 1) return pack_usage_error("trust takes key files, --list, --remove ID or --revoke ID");
  if (given.count("ids") != 0) request.ids = given["ids"].as<PackWords>();
  for (const std::string& pattern : request.ids.value_or(PackWords()))
    if (!is_id_pattern(pattern)) return pack_usage_error(quote(pattern) + " is not a pattern of ids such as acme.*");
  if (given.count("name") != 0) request.name = option_text(given, "name");
  if (const std::string index = option_text(given, "index"); !index.empty()) request.index = TRY(normal_place(index));
  request.has_threshold = given.count("threshold") != 0;
  if (words.empty() && request.has_threshold)
    return pack_usage_error("--threshold needs the key files of the publisher");
  if (words.empty()) return request;
  request.files = words;
  request.signers = TRY(signer_set(given, words));
  return request;
}

void print_change(const TrustRequest& request, const Trust& trust) {
  if (request.files.empty()) {
    std::cout << (request.removed.empty() ? "revoked: " + request.revoked : "no longer trusted: " + request.removed)
              << "\n";
    return;
  }
  const Publisher& added = trust.publishers.back();  // the user's come last
  std::cout << "trusted: " << added.signers.text() << " for " << join(added.ids, ", ") << "\n";
  if (added.ids == PackWords{"*"}) std::cout << "Packs of any id may be signed so. Limit it with --ids 'acme.*'.\n";
}

}  // namespace

Result<> pack_trust(Arguments args) {
  po::options_description options("options", kHelpWidth);
  options.add_options()(
      "ids", po::value<PackWords>()->composing(),
      "ids that the key may sign, as in acme.*; may be repeated; default: those that it has, of a new key * (any that no "
      "other key owns)")("threshold", po::value<uint32_t>(), "how many of one publisher's keys must sign")(
      "name", po::value<std::string>(), "whose key it is")(
      "index", po::value<std::string>(), "where the publisher's index is")("list", "show what is trusted and revoked")(
      "remove", po::value<std::string>(), "stop trusting this key and the others of its publisher: its id or KEY.pub")(
      "revoke", po::value<std::string>(), "refuse this key from now on: its id or KEY.pub")(
      "reason", po::value<std::string>()->default_value(""), "why, with --revoke")("json", "as JSON")("help,h",
                                                                                                      "this text");
  const auto given = TRY(pack_words(args,
                                    "trust KEY.pub ... [--threshold K] [--ids 'acme.*'] [--index URL] | --list | "
                                    "--remove ID | --revoke ID",
                                    options));
  if (!given) return {};
  const TrustRequest request = TRY(trust_request(*given));
  const PackPlaces places = TRY(pack_places());
  const bool list = given->count("list") != 0;
  const auto change = [&](Trust& trust) -> Result<> {
    if (!request.files.empty()) return add_publisher(request, trust);
    return request.removed.empty() ? revoke_key(request, trust) : remove_key(request.removed, trust);
  };
  const Trust trust = list ? TRY(read_trust(default_env(), places)) : TRY(change_trust(default_env(), places, change));
  if (given->count("json") != 0) {
    std::cout << dump_json(trust_json(trust), 2) << "\n";
  } else if (list) {
    print_trust(trust);
  } else {
    print_change(request, trust);
  }
  return {};
}

}  // namespace mortise
