// `mortise pack publish`: an index written, and signed by one key after another.
#include <fmt/core.h>

#include <iostream>

#include "command_line.h"
#include "foundation/base/text.h"
#include "pack_command.h"
#include "packs/index.h"

namespace mortise {

namespace po = boost::program_options;

namespace {

constexpr int64_t kDaySeconds = 86'400;
constexpr int64_t kMostDays = 3650;

// "KEY.pub=acme.*,acme2.*"
Result<IndexedKey> next_key(const std::string& word) {
  const size_t equals = word.rfind('=');
  if (equals == std::string::npos) return pack_usage_error("--next-key takes KEY.pub=acme.*");
  const std::string path = word.substr(0, equals);
  IndexedKey key;
  key.key = TRY(public_keys({path})).at(0);
  for (const std::string_view pattern : split(std::string_view(word).substr(equals + 1), ',')) {
    if (!is_id_pattern(pattern)) return pack_usage_error(quote(pattern) + " is not a pattern of ids such as acme.*");
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

po::options_description publish_options() {
  po::options_description options("options", kHelpWidth);
  options.add_options()("to", po::value<std::string>(), "the folder of the index; made if it is missing")(
      "secret", po::value<std::string>(), "the secret key that signs the index")(
      "password-file", po::value<std::string>(), "file with the password of the secret key")(
      "name", po::value<std::string>()->default_value(""), "the publisher's name")(
      "days", po::value<int64_t>()->default_value(90), "days until the index expires: publish again before that")(
      "revoke", po::value<PackWords>()->composing(),
      "revoke a key (its id or KEY.pub) or an archive, so that nobody uses it any more")(
      "reason", po::value<std::string>()->default_value(""), "why, with --revoke")(
      "next-key", po::value<PackWords>()->composing(),
      "KEY.pub=acme.*: a further key that readers trust for these ids")(
      "signer", po::value<PackWords>()->composing(),
      "KEY.pub: one of the keys that sign from now on; name all of them. Readers take them over if the former ones, "
      "too, signed this index")("threshold", po::value<uint32_t>(), "how many of the signers must sign; default: 1")(
      "add-signature",
      "change nothing, and sign the index and its archives with --secret too, or add the .minisig files that minisign "
      "wrote")("previous-key", po::value<PackWords>()->composing(),
               "OLD.pub: a key that signed the index so far, if you replace it; as many as had to sign")(
      "json", "the result as JSON")("help,h", "this text");
  return options;
}

Result<PublishRequest> publish_request(const po::variables_map& given) {
  PublishRequest request;
  for (const std::string& word : words_of(given)) request.archives.emplace_back(word);
  for (const std::string& word : list_of(given, "next-key")) request.keys.push_back(TRY(next_key(word)));
  for (const std::string& word : list_of(given, "revoke"))
    request.revoked.push_back(TRY(revocation(word, option_text(given, "reason"))));
  const auto days = given["days"].as<int64_t>();
  if (days < 1 || days > kMostDays) return pack_usage_error(fmt::format("--days must be from 1 to {}", kMostDays));
  request.lifetime_s = days * kDaySeconds;
  request.name = option_text(given, "name");
  request.previous = TRY(public_keys(list_of(given, "previous-key")));
  const PackWords signers = list_of(given, "signer");
  if (!signers.empty()) request.signers = TRY(signer_set(given, signers));
  if (signers.empty() && given.count("threshold") != 0)
    return pack_usage_error("--threshold needs --signer, once for each key");
  return request;
}

std::string still_missing(const std::string& folder, const SignerSet& signers, size_t num_signed) {
  if (num_signed >= signers.threshold) return "";
  return fmt::format(
      "It has {} of {} signatures. Until it has all, readers refuse it. Another signer adds one with "
      "`mortise pack publish --to {} --add-signature --secret KEY`\n",
      num_signed, signers.threshold, folder);
}

Result<> add_signatures(const std::string& folder, const po::variables_map& given) {
  for (const char* name : {"revoke", "next-key", "signer", "threshold"})
    if (given.count(name) != 0)
      return pack_usage_error(fmt::format("--add-signature changes nothing in the index: leave --{} away", name));
  for (const char* name : {"name", "days", "reason"})
    if (!given[name].defaulted())
      return pack_usage_error(fmt::format("--add-signature changes nothing in the index: leave --{} away", name));
  CountersignRequest request;
  for (const std::string& word : words_of(given)) request.signatures.emplace_back(word);
  request.previous = TRY(public_keys(list_of(given, "previous-key")));
  SigningSecretKey key;
  if (given.count("secret") != 0 || request.signatures.empty()) {
    key = TRY(secret_key_of(given));
    request.key = &key;
  }
  const Countersigned done = TRY(countersign_index(default_env(), folder, request));
  const SignerSet& signers = done.index.signers;
  const bool complete = done.keys.size() >= signers.threshold;
  if (given.count("json") != 0) {
    std::cout << dump_json({{"version", done.index.version},
                            {"signed_by", key_ids_json(done.keys)},
                            {"threshold", signers.threshold},
                            {"complete", complete},
                            {"files", done.files}},
                           2)
              << "\n";
    return {};
  }
  for (const std::string& file : done.files) std::cout << folder << "/" << file << "\n";
  std::cout << folder << ": version " << done.index.version << ", signed by " << shown_keys(done.keys) << "\n"
            << still_missing(folder, signers, done.keys.size());
  return {};
}

}  // namespace

Result<> pack_publish(Arguments args) {
  const auto given =
      TRY(pack_words(args,
                     "publish [F.mpack ...] --to FOLDER --secret S [--days N]\n"
                     "       mortise pack publish --to FOLDER --add-signature --secret S | F.minisig ...",
                     publish_options()));
  if (!given) return {};
  const std::string folder = option_text(*given, "to");
  if (folder.empty()) return pack_usage_error("--to is missing");
  if (given->count("add-signature") != 0) return add_signatures(folder, *given);
  const PublishRequest request = TRY(publish_request(*given));
  const SigningSecretKey key = TRY(secret_key_of(*given));
  const PackIndex index = TRY(publish_index(default_env(), folder, key, request));
  if (given->count("json") != 0) {
    std::cout << index_text(index);
    return {};
  }
  std::cout << folder << ": version " << index.version << " with " << index.packs.size()
            << (index.packs.size() == 1 ? " pack" : " packs") << ", signed with " << key_id_text(key.id)
            << ", good for " << request.lifetime_s / kDaySeconds << " days\n";
  if (!index.signers.keys.empty())
    std::cout << still_missing(folder, index.signers, index.signers.contains(key.public_key()) ? 1 : 0);
  return {};
}

}  // namespace mortise
