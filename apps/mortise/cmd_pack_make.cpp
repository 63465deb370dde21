// `mortise pack keygen|build|sign|verify|inspect`: what the author of a pack uses. None runs code of a pack.
#include <fmt/core.h>
#include <sys/stat.h>
#include <filesystem>
#include <iostream>

#include "command_line.h"
#include "foundation/base/rename_target.h"
#include "foundation/base/shown_text.h"
#include "foundation/base/text.h"
#include "pack_command.h"
#include "packs/minisign.h"
#include "packs/pack_builder.h"
#include "packs/signers.h"
#include "packs/signing.h"

namespace mortise {

namespace po = boost::program_options;

namespace {

void print_json(const Json& value) { std::cout << dump_json(value, 2) << "\n"; }

po::options_description base_options() {
  po::options_description options("options", kHelpWidth);
  options.add_options()("json", "the result as JSON")("help,h", "this text");
  return options;
}

Result<std::string> needed(const po::variables_map& given, const char* name) {
  std::string text = option_text(given, name);
  if (text.empty()) return pack_usage_error(fmt::format("--{} is missing", name));
  return text;
}

Result<std::string> one_file(const po::variables_map& given) {
  const auto files = words_of(given);
  if (files.size() != 1) return pack_usage_error("it takes one file");
  return files[0];
}

// Readable for its owner alone from its first byte on; an existing file is never replaced.
Result<> write_secret(const Path& path, std::string_view text) {
  Env& env = default_env();
  const mode_t before = ::umask(077);
  auto opened = env.open_for_write(path, WriteMode::kExclusive);
  ::umask(before);
  const auto file = TRY(std::move(opened));
  TRY(file->append_text(text));
  TRY(file->sync());
  TRY(file->close());
  return env.sync_dir(folder_of(path));
}

Result<> write_new(const Path& path, std::string_view text) {
  const auto file = TRY(default_env().open_for_write(path, WriteMode::kExclusive));
  TRY(file->append_text(text));
  TRY(file->sync());
  return file->close();
}

}  // namespace

Result<> pack_keygen(Arguments args) {
  auto options = base_options();
  options.add_options()("public", po::value<std::string>(), "file to write the public key to; give it to everybody")(
      "secret", po::value<std::string>(), "file to write the secret key to; keep it")(
      "password-file", po::value<std::string>(), "encrypt the secret key with the password in this file");
  const auto given = TRY(pack_words(args, "keygen --public P --secret S [--password-file F]", options));
  if (!given) return {};
  const std::string public_path = TRY(needed(*given, "public")), secret_path = TRY(needed(*given, "secret"));
  if (!words_of(*given).empty()) return pack_usage_error("keygen takes no further words");
  TRY(check_distinct({"--public", public_path}, {"--secret", secret_path}, "mortise pack keygen"));
  for (const std::string& path : {public_path, secret_path}) {
    if (default_env().exists(path))
      return Error{ErrorKind::kDisk, "the file is there already", path,
                   "name another: a lost key cannot be made again"};
  }
  const SecretText password = TRY(password_of(*given));
  const KeyPair pair = TRY(make_key_pair());
  const SecretText secret = TRY(secret_key_file(pair.secret_key, password.view()));
  TRY(write_secret(secret_path, secret.view()));
  TRY(write_new(public_path, public_key_file(pair.public_key)));
  if (given->count("json") != 0) {
    print_json({{"key", pair.public_key.id_text()}, {"public", pair.public_key.text()}});
    return {};
  }
  std::cout << "key " << pair.public_key.id_text() << "\n  public  " << public_path << "\n  secret  " << secret_path
            << (password.empty() ? " (no password)" : "") << "\n";
  return {};
}

Result<> pack_build(Arguments args) {
  auto options = base_options();
  options.add_options()("output,o", po::value<std::string>(), "the archive; default: ID-VERSION.mpack");
  const auto given = TRY(pack_words(args, "build FOLDER | FILE.so ... [-o F.mpack]", options));
  if (!given) return {};
  std::vector<Path> inputs;
  for (const std::string& word : words_of(*given)) inputs.emplace_back(word);
  if (inputs.empty()) return pack_usage_error("name a folder or shared objects");
  const PackArchive archive = TRY(build_pack(default_env(), inputs));
  std::string output = option_text(*given, "output");
  if (output.empty()) output = archive_file_name(archive.description);
  for (const Path& input : inputs)
    TRY(check_distinct({"the input", input.string()}, {"-o", output}, "mortise pack build"));
  TRY(write_file_atomic(default_env(), output, archive.bytes));
  if (given->count("json") != 0) {
    Json result = description_json(archive.description);
    result["file"] = output;
    result["sha256"] = archive.sha256;
    result["size"] = archive.bytes.size();
    print_json(result);
    return {};
  }
  std::cout << output << ": " << archive.description.label() << ", " << format_bytes(archive.bytes.size())
            << ", sha256 " << archive.sha256 << "\n";
  for (const PackBuild& build : archive.description.builds)
    std::cout << "  build  " << one_line(build.platform()) << "\n";
  std::cout << "Sign it: `mortise pack sign " << output << " --secret KEY`\n";
  return {};
}

Result<> pack_sign(Arguments args) {
  auto options = base_options();
  options.add_options()("secret", po::value<std::string>(), "the secret key, of `pack keygen` or of minisign")(
      "password-file", po::value<std::string>(), "file with the password of the secret key")(
      "add-signature", "keep the signatures of other keys: for a publisher whose packs several keys sign");
  const auto given = TRY(pack_words(args, "sign F.mpack --secret S [--add-signature] [--password-file P]", options));
  if (!given) return {};
  const std::string file = TRY(one_file(*given));
  const PackArchive archive = TRY(read_pack_archive(default_env(), file));
  const SigningSecretKey key = TRY(secret_key_of(*given));
  const PackDescription& pack = archive.description;
  const std::string target = file + ".minisig";
  TRY(check_distinct({"--secret", option_text(*given, "secret")}, {"the signature", target}, "mortise pack sign"));
  std::string signature = TRY(sign_archive(default_env(), key, archive));
  if (given->count("add-signature") != 0) {
    const std::string before = TRY(default_env().read_file(target, kMaxSignatureFileBytes));
    signature = TRY(join_signatures(before, signature, target));
  }
  Json keys = Json::array();
  for (const FileSignature& one : TRY(parse_signatures(signature, target))) keys.push_back(key_id_text(one.key_id));
  TRY(write_file_atomic(default_env(), target, signature));
  if (given->count("json") != 0) {
    print_json({{"file", target},
                {"key", key_id_text(key.id)},
                {"signed_by", keys},
                {"id", pack.id},
                {"version", pack.version}});
    return {};
  }
  std::cout << target << ": " << pack.label() << ", signed with the key " << key_id_text(key.id);
  if (keys.size() > 1) std::cout << "; it has the signatures of " << keys.size() << " keys";
  std::cout << "\n";
  return {};
}

Result<> pack_verify(Arguments args) {
  auto options = base_options();
  options.add_options()("public", po::value<PackWords>()->composing(),
                        "the publisher's public key; may be repeated; default: the trusted keys")(
      "threshold", po::value<uint32_t>(), "how many keys of --public must have signed; default: 1");
  const auto given = TRY(pack_words(args, "verify F.mpack [--public P ... [--threshold K]]", options));
  if (!given) return {};
  const std::string file = TRY(one_file(*given));
  const PackWords public_files = list_of(*given, "public");
  if (public_files.empty() && given->count("threshold") != 0)
    return pack_usage_error("--threshold needs --public; `pack trust --threshold` sets that of trusted keys");
  const PackArchive archive = TRY(read_pack_archive(default_env(), file));
  const std::string signature = TRY(signature_beside(file));
  const PackDescription& pack = archive.description;
  Trust trust;
  const PackPlaces places = public_files.empty() ? TRY(pack_places()) : known_pack_places();
  trust = TRY(read_trust(default_env(), places));
  TRY(check_not_revoked(trust, archive.sha256, pack.id, file));
  if (!public_files.empty()) {  // the keys on the command line are those that count, unless they were revoked
    const SignerSet signers = TRY(signer_set(*given, public_files));
    trust.publishers = {{signers, {"*"}, "", "", false}};
  }
  if (signature.empty())
    return Error{ErrorKind::kPlugin, fmt::format("the archive is not signed: there is no {}.minisig", file), file,
                 "get the signature from the publisher, or sign it with `mortise pack sign`"};
  const SignedBy signer = TRY(check_signer(trust, signature, archive.bytes, pack.id, pack.version, file + ".minisig"));
  const std::string& name = signer.publisher.name;
  if (given->count("json") != 0) {
    print_json({{"file", file},
                {"id", pack.id},
                {"version", pack.version},
                {"sha256", archive.sha256},
                {"signed_by", key_ids_json(signer.keys)},
                {"threshold", signer.publisher.signers.threshold},
                {"good", true}});
    return {};
  }
  std::cout << file << ": " << pack.label() << ", good signature of the key" << (signer.keys.size() == 1 ? " " : "s ")
            << shown_keys(signer.keys) << (name.empty() ? "" : fmt::format(" ({})", one_line(name))) << "\n";
  return {};
}

Result<> pack_inspect(Arguments args) {
  const auto given = TRY(pack_words(args, "inspect F.mpack [--json]", base_options()));
  if (!given) return {};
  const std::string file = TRY(one_file(*given));
  const PackArchive archive = TRY(read_pack_archive(default_env(), file));
  const std::string signature = TRY(signature_beside(file));
  PackWords keys;
  if (!signature.empty())
    for (const FileSignature& one : TRY(parse_signatures(signature, file + ".minisig")))
      keys.push_back(key_id_text(one.key_id));
  if (given->count("json") != 0) {
    Json result = description_json(archive.description);
    result["sha256"] = archive.sha256;
    result["size"] = archive.bytes.size();
    result["signed_by"] = keys;
    result["files"] = Json::array();
    for (const auto& one : archive.files) result["files"].push_back({{"path", one.path}, {"size", one.size}});
    print_json(result);
    return {};
  }
  print_archive(archive, std::cout);
  std::cout << "\nsigned by  "
            << (keys.empty() ? "nobody" : join(keys, ", ") + " (not checked here; see `mortise pack verify`)")
            << "\nfiles\n";
  for (const auto& one : archive.files) std::cout << "  " << one.path << "  " << format_bytes(one.size) << "\n";
  return {};
}

}  // namespace mortise
