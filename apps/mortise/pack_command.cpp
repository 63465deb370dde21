// Options, paths and passwords that the commands of `mortise pack` share.
#include "pack_command.h"

#include <fmt/core.h>
#include <filesystem>
#include <iostream>

#include "command_line.h"
#include "foundation/base/log.h"
#include "foundation/base/shown_text.h"
#include "foundation/base/text.h"
#include "plugin_show.h"

namespace mortise {

namespace po = boost::program_options;

Error pack_usage_error(std::string what) {
  return {ErrorKind::kConfig, std::move(what), "mortise pack", "`mortise pack COMMAND --help` shows the usage"};
}

Result<std::optional<po::variables_map>> pack_words(Arguments args, const char* usage,
                                                    const po::options_description& options) {
  po::variables_map given = TRY(parse_words(args, options, "mortise pack"));
  if (given.count("help") == 0) return std::optional(std::move(given));
  std::cout << "usage: mortise pack " << usage << "\n\n" << options;
  return std::optional<po::variables_map>();
}

std::string option_text(const po::variables_map& given, const char* name) {
  return given.count(name) == 0 ? std::string() : given[name].as<std::string>();
}

Result<PackPlaces> places_of(const po::variables_map& given) {
  PackPlaces places = TRY(pack_places());
  if (const std::string store = option_text(given, "store"); !store.empty()) {
    std::error_code failed;
    places.store = std::filesystem::absolute(store, failed).lexically_normal();
  }
  return places;
}

Result<std::string> signature_beside(const Path& archive) {
  const Path path = archive.string() + ".minisig";
  if (!default_env().exists(path)) return std::string();
  return default_env().read_file(path, kMaxSignatureFileBytes);
}

PackWords list_of(const po::variables_map& given, const char* name) {
  return given.count(name) == 0 ? PackWords() : given[name].as<PackWords>();
}

Result<std::vector<SigningPublicKey>> public_keys(const PackWords& files) {
  std::vector<SigningPublicKey> keys;
  for (const std::string& file : files) {
    const std::string text = TRY(default_env().read_file(file, kMaxSigningKeyBytes));
    keys.push_back(TRY(parse_public_key(text, file)));
  }
  return keys;
}

Result<SignerSet> signer_set(const po::variables_map& given, const PackWords& files) {
  SignerSet set;
  set.keys = TRY(public_keys(files));
  if (given.count("threshold") != 0) set.threshold = given["threshold"].as<uint32_t>();
  const std::string fault = signer_set_fault(set);
  return fault.empty() ? Result<SignerSet>(std::move(set)) : pack_usage_error(fault);
}

Json key_ids_json(const std::vector<SigningPublicKey>& keys) {
  Json out = Json::array();
  for (const SigningPublicKey& key : keys) out.push_back(key.id_text());
  return out;
}

Result<SecretText> password_of(const po::variables_map& given) {
  const std::string file = option_text(given, "password-file");
  if (file.empty()) return SecretText();
  SecretText text = TRY(read_secret(default_env(), file, kMaxSigningKeyBytes));
  text.remove_line_end();
  if (text.empty()) return Error{ErrorKind::kData, "the password file is empty", file, "write a password into it"};
  return text;
}

Result<SigningSecretKey> secret_key_of(const po::variables_map& given) {
  const std::string path = option_text(given, "secret");
  if (path.empty()) return pack_usage_error("--secret is missing");
  const SecretText password = TRY(password_of(given));
  const SecretText text = TRY(read_secret(default_env(), path, kMaxSigningKeyBytes));
  return parse_secret_key(text.view(), password.view(), path);
}

Result<> all_of(const std::vector<Error>& errors) {
  if (errors.empty()) return {};
  Error all = errors.front();
  for (size_t i = 1; i < errors.size(); ++i) {
    if (i == 1) all = {all.kind, all.to_string(), "", ""};
    all.what += "\nerror: " + errors[i].to_string();
  }
  return all;
}

Result<std::string> index_of(const po::variables_map& given, const Trust& trust, const std::string& id) {
  if (const std::string index = option_text(given, "index"); !index.empty()) {
    return normal_place(index);
  }
  for (const Publisher* owner : trust.owners(id))
    if (!owner->index.empty()) return owner->index;
  return Error{ErrorKind::kConfig, "no index is known for " + quote(id), "mortise pack",
               "give --index URL, or trust the publisher's key with `mortise pack trust KEY.pub --index URL`"};
}

Result<IndexedSource> open_index(const PackPlaces& places, const std::string& place, Trust& trust) {
  IndexedSource out;
  out.source = TRY(open_source(default_env(), place, default_fetch_options()));
  out.checked = TRY(read_index(default_env(), places, place, *out.source, trust));
  for (const std::string& news : out.checked.news) log_warn(one_line(fmt::format("{}: {}", place, news)));
  return out;
}

Json description_json(const PackDescription& pack) {
  Json out = {{"id", pack.id},
              {"version", pack.version},
              {"license", pack.license},
              {"summary", pack.summary},
              {"authors", pack.authors},
              {"homepage", pack.homepage},
              {"needs", pack.needs},
              {"builds", Json::array()},
              {"plugins", Json::array()},
              {"rights", rights_of(pack)},
              {"tests", pack.tests}};
  for (const PackBuild& build : pack.builds) {
    out["builds"].push_back({{"file", build.file},
                             {"sha256", build.sha256},
                             {"size", build.size},
                             {"os", build.os},
                             {"arch", build.arch},
                             {"cpu", build.cpu},
                             {"tier", build.tier},
                             {"torch", build.torch},
                             {"cuda", build.cuda}});
  }
  for (const PluginInfo& plugin : pack.plugins) {
    Json one = {{"kind", plugin.kind}, {"name", plugin.name}, {"summary", plugin.summary}, {"params", Json::array()}};
    for (const ParamInfo& param : plugin.params) one["params"].push_back(param_json(param));
    out["plugins"].push_back(std::move(one));
  }
  return out;
}

Json installed_json(const InstalledPack& pack) {
  return {{"id", pack.id},
          {"version", pack.version},
          {"sha256", pack.sha256},
          {"library", pack.library.string()},
          {"library_sha256", pack.library_sha256},
          {"signed_by", key_ids_json(pack.signed_by.keys)},
          {"other_keys", pack.other_keys},
          {"platform", pack.platform},
          {"source", pack.source},
          {"installed_at", pack.installed_at}};
}

void print_archive(const PackArchive& archive, std::ostream& out) {
  const PackDescription& pack = archive.description;
  // Nobody has vouched for these texts yet: none may hold what a terminal would obey.
  out << pack.label() << (pack.summary.empty() ? "" : ": " + one_line(pack.summary)) << "\n";
  const auto line = [&](const char* name, const std::string& text) {
    if (!text.empty()) out << "  " << name << one_line(text) << "\n";
  };
  line("licence   ", pack.license);
  line("authors   ", join(pack.authors, ", "));
  line("homepage  ", pack.homepage);
  line("needs     ", join(pack.needs, ", "));
  line("sha256    ", archive.sha256);
  for (const PackBuild& build : pack.builds) line("build     ", build.platform());
  out << "what it may do\n";
  for (const std::string& right : rights_of(pack)) out << "  " << one_line(right) << "\n";
}

}  // namespace mortise
