// `mortise pack install|list|remove`: what the user of a pack needs.
#include <fmt/core.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <iostream>

#include "command_line.h"
#include "foundation/base/log.h"
#include "foundation/base/shown_text.h"
#include "foundation/base/text.h"
#include "foundation/base/this_program.h"
#include "model/tensor/torch_version.h"
#include "pack_command.h"
#include "packs/admission.h"
#include "packs/golden.h"
#include "packs/index.h"
#include "packs/machine.h"
#include "packs/origin.h"
#include "packs/pack_builder.h"
#include "packs/rules.h"
#include "packs/run_lock.h"
#include "packs/signers.h"
#include "plugin/pack/note.h"

namespace mortise {

namespace po = boost::program_options;

namespace {

po::options_description store_options() {
  po::options_description options("options", kHelpWidth);
  options.add_options()("store", po::value<std::string>(), "the folder of installed packs; default: the user's")(
      "json", "the result as JSON")("help,h", "this text");
  return options;
}

// A pack that is about to be installed: read, checked, and by whom it is signed.
struct Incoming {
  PackArchive archive;
  std::string signature, source;
  std::optional<SignedBy> signer;
};

Result<Incoming> read_incoming(const std::string& word) {
  Env& env = default_env();
  Incoming in;
  std::error_code failed;
  in.source = std::filesystem::absolute(word, failed).lexically_normal().string();
  if (TRY(env.info(word)).is_directory) {
    const std::vector<Path> folder = {word};
    in.archive = TRY(build_pack(env, folder));
    return in;
  }
  in.archive = TRY(read_pack_archive(env, word));
  in.signature = TRY(signature_beside(word));
  return in;
}

// "acme.match@^1.2" from an index: the one named, or that of the key which owns the id.
Result<Incoming> fetch_incoming(const std::string& word, const po::variables_map& given, const PackPlaces& places,
                                Trust& trust) {
  const size_t at = word.find('@');
  const std::string id = word.substr(0, at), range = at == std::string::npos ? "" : word.substr(at + 1);
  if (!is_pack_id(id) || id.ends_with(".mpack"))
    return Error{ErrorKind::kData, fmt::format("there is no file or folder {}, and it is no id of a pack", quote(word)),
                 "mortise pack install", "name an archive, or an id as in acme.match@^1.2"};
  auto known = index_of(given, trust, id);
  if (!known.ok() && default_env().exists(word))
    known.error().next = fmt::format("name ./{} if you mean the file or folder here; ", word) + known.error().next;
  const std::string place = TRY(std::move(known));
  const IndexedSource indexed = TRY(open_index(places, place, trust));
  const IndexedPack* pack = TRY(indexed.checked.index.newest(id, range));
  if (pack == nullptr)
    return Error{ErrorKind::kData, "the index has no " + word, place, "`mortise pack outdated` shows what it has"};
  IndexedArchive fetched = TRY(fetch_indexed(*indexed.source, *pack, place));
  Incoming in;
  in.source = place;
  in.archive = TRY(check_archive(std::move(fetched.bytes), fmt::format("{}/{}", place, pack->file)));
  in.signature = std::move(fetched.signature);
  if (in.archive.description.id != pack->id || in.archive.description.version != pack->version)
    return broken_rule(
        PackRule::kTarget,
        fmt::format("the index says {}@{}, the archive is {}", pack->id, pack->version, in.archive.description.label()),
        in.archive.path, "tell the publisher");
  return in;
}

// An id is one of an index, even if a folder here has the same name: nobody is to install what happens to lie there.
bool names_file(const std::string& word, const po::variables_map& given) {
  if (given.count("index") != 0 || !default_env().exists(word)) return false;
  return !is_pack_id(word) || word.ends_with(".mpack");
}

// --trust locked: the lock names the build that is to be installed. Another build of the archive says nothing of it.
Result<> check_locked(const PackArchive& archive, const PackBuild& build, const po::variables_map& given,
                      const TrustPolicy& policy) {
  if (!policy.must_be_locked) return {};
  const std::string path = option_text(given, "lock");
  const RunLock lock = TRY(read_run_lock(default_env(), path));
  if (lock.find(archive.description.id, build.sha256) != nullptr) return {};
  return broken_rule(
      PackRule::kTarget,
      fmt::format("the build of {} for this machine is not the one that is locked", archive.description.label()), path,
      "install the version that the lock names, or lock again with `mortise pack lock RUN.toml`");
}

std::string signed_by(const Incoming& in) {
  if (!in.signer)
    return in.signature.empty() ? "nobody: whoever could change the file could change the pack"
                                : "keys that do not count: see the warning";
  const std::string& name = in.signer->publisher.name;
  return shown_keys(in.signer->keys) + (name.empty() ? "" : fmt::format(" ({})", one_line(name)));
}

// Shows what the pack may do, and asks. `out`: standard error where standard output is for JSON.
Result<bool> user_agrees(const Incoming& in, const po::variables_map& given, std::ostream& out) {
  const bool asks = given.count("yes") == 0 && ::isatty(STDIN_FILENO) != 0;
  if (asks || given.count("json") == 0) {
    print_archive(in.archive, out);
    out << "signed by\n  " << signed_by(in) << "\n" << std::flush;
  }
  if (!asks) return true;
  out << "Install it? [y/N] " << std::flush;
  std::string answer;
  std::getline(std::cin, answer);
  return answer == "y" || answer == "yes";
}

Result<> run_tests(const Incoming& in, const PackBuild& build) {
  const auto outcomes = TRY(run_golden_tests(default_env(), in.archive, build, {.program = this_program()}));
  for (const GoldenOutcome& outcome : outcomes) {
    if (outcome.fault.empty()) continue;
    return Error{ErrorKind::kPlugin, fmt::format("the golden test {} failed: {}", outcome.test, outcome.fault),
                 in.archive.path, "tell the publisher; nothing was installed"};
  }
  return {};
}

Result<TrustPolicy> install_policy(const po::variables_map& given, const PackPlaces& places) {
  const std::string text = option_text(given, "trust");
  const TrustPolicy asked = TRY(parse_trust_policy(text.empty() ? "signed" : text, "--trust"));
  const TrustPolicy machine = TRY(machine_policy(default_env(), places));
  return tighter(asked, machine);
}

}  // namespace

Result<> pack_install(Arguments args) {
  auto options = store_options();
  options.add_options()(
      "trust", po::value<std::string>(),
      "signed (default): only packs that a trusted key signed; any: unsigned packs too; locked: only builds that "
      "the lock names. "
      "/etc/mortise/policy.toml can only make it stricter")(
      "index", po::value<std::string>(), "https:// address or folder of an index; default: that of the trusted key")(
      "lock", po::value<std::string>()->default_value("mortise.lock"), "with --trust locked: the file of `pack lock`")(
      "yes,y", "do not ask; without a terminal nothing is asked");
  const auto given = TRY(pack_words(
      args, "install F.mpack | FOLDER | ID[@RANGE] [--index URL] [--store DIR] [--trust any|signed|locked]", options));
  if (!given) return {};
  const auto words = words_of(*given);
  if (words.size() != 1) return pack_usage_error("install takes one archive, folder or id");
  const PackPlaces places = TRY(places_of(*given));
  const TrustPolicy policy = TRY(install_policy(*given, places));
  Trust trust = TRY(read_trust(default_env(), places));
  Incoming in = names_file(words[0], *given) ? TRY(read_incoming(words[0]))
                                             : TRY(fetch_incoming(words[0], *given, places, trust));
  const ArchiveOrigin origin = TRY(check_origin(trust, policy, in.archive, in.signature));
  if (!origin.doubt.empty()) log_warn(one_line(origin.doubt));
  in.signer = origin.signer;
  const PackBuild* build = TRY(choose_build(in.archive.description, this_machine(kTorchVersion), in.archive.path));
  TRY(check_locked(in.archive, *build, *given, policy));
  const bool json = given->count("json") != 0;
  if (!TRY(user_agrees(in, *given, json ? std::cerr : std::cout)))
    return Error{ErrorKind::kConfig, "not installed, as you said", in.archive.path, "answer y, or give --yes"};
  TRY(run_tests(in, *build));
  PackStore store(default_env(), places.store);
  SignerSet signed_by;
  if (in.signer) signed_by = {in.signer->keys, in.signer->publisher.signers.threshold};
  const InstalledPack installed = TRY(store.install({&in.archive, build, in.signature, signed_by, in.source}));
  if (json) {
    std::cout << dump_json(installed_json(installed), 2) << "\n";
    return {};
  }
  const size_t num_tests = in.archive.description.tests.size();
  std::cout << "installed " << in.archive.description.label() << " for " << one_line(build->platform()) << ", "
            << num_tests << (num_tests == 1 ? " golden test" : " golden tests") << " passed\n  "
            << installed.library.string() << "\n";
  return {};
}

namespace {

// Why no run uses it; "" if it is not revoked.
Result<std::string> revoked_because(const Trust& trust, const InstalledPack& pack) {
  const Revocation* revoked = TRY(revocation_of_installed(default_env(), trust, pack));
  if (revoked == nullptr) return std::string();
  return revoked->reason.empty() ? "no reason was given" : revoked->reason;
}

std::string shown_signers(const InstalledPack& pack) {
  if (!pack.signed_by.keys.empty()) return "signed by " + shown_keys(pack.signed_by.keys);
  if (pack.other_keys.empty()) return "unsigned";
  return fmt::format("signed by {}, which did not count", one_line(join(pack.other_keys, ", ")));
}

Json damaged_json(const std::vector<DamagedEntry>& damaged) {
  Json out = Json::array();
  for (const DamagedEntry& one : damaged)
    out.push_back({{"id", one.id}, {"version", one.version}, {"error", one.error.to_string()}});
  return out;
}

Result<> all_damaged(const std::vector<DamagedEntry>& damaged) {
  std::vector<Error> errors;
  for (const DamagedEntry& one : damaged) errors.push_back(one.error);
  return all_of(errors);
}

}  // namespace

Result<> pack_list(Arguments args) {
  const auto given = TRY(pack_words(args, "list [--store DIR] [--json]", store_options()));
  if (!given) return {};
  if (!words_of(*given).empty()) return pack_usage_error("list takes no further words");
  const PackPlaces places = TRY(places_of(*given));
  const Trust trust = TRY(read_trust(default_env(), places));
  std::vector<DamagedEntry> damaged;
  const auto packs = TRY(PackStore(default_env(), places.store).list(&damaged));
  if (given->count("json") != 0) {
    Json out = {{"store", places.store.string()}, {"packs", Json::array()}, {"damaged", damaged_json(damaged)}};
    for (const InstalledPack& pack : packs) {
      out["packs"].push_back(installed_json(pack));
      const std::string why = TRY(revoked_because(trust, pack));
      out["packs"].back()["revoked"] = why.empty() ? Json() : Json(why);
    }
    std::cout << dump_json(out, 2) << "\n";
    return all_damaged(damaged);
  }
  if (packs.empty()) std::cout << "no pack is installed in " << places.store.string() << "\n";
  for (const InstalledPack& pack : packs) {
    const std::string why = TRY(revoked_because(trust, pack));
    std::cout << pack.id << "  " << pack.version << "  " << pack.sha256.substr(0, 12) << "  " << shown_signers(pack)
              << "  from " << one_line(pack.source) << (why.empty() ? "" : "  REVOKED: " + one_line(why)) << "\n";
  }
  return all_damaged(damaged);
}

Result<> pack_remove(Arguments args) {
  const auto given = TRY(pack_words(args, "remove ID[@VERSION] [--store DIR] [--json]", store_options()));
  if (!given) return {};
  const auto words = words_of(*given);
  if (words.size() != 1) return pack_usage_error("remove takes one ID or ID@VERSION");
  const size_t at = words[0].find('@');
  const std::string id = words[0].substr(0, at), version = at == std::string::npos ? "" : words[0].substr(at + 1);
  if (at != std::string::npos && version.empty()) return pack_usage_error("there is no version after the @");
  const PackPlaces places = TRY(places_of(*given));
  const RemovedPacks removed = TRY(PackStore(default_env(), places.store).remove(id, version));
  if (given->count("json") != 0) {
    Json out = {{"removed", Json::array()}, {"damaged", damaged_json(removed.damaged)}};
    for (const InstalledPack& pack : removed.packs)
      out["removed"].push_back({{"id", pack.id}, {"version", pack.version}});
    std::cout << dump_json(out, 2) << "\n";
  } else {
    for (const InstalledPack& pack : removed.packs)
      std::cout << "removed " << pack.id << "@" << one_line(pack.version) << "\n";
  }
  return all_damaged(removed.damaged);
}

}  // namespace mortise
