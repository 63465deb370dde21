// `mortise pack lock`: writes down which packs a run uses.
#include <fmt/core.h>
#include <iostream>

#include "command_line.h"
#include "config/check.h"
#include "config/load.h"
#include "experience/plugin_settings.h"
#include "foundation/base/choice.h"
#include "foundation/base/log.h"
#include "foundation/base/text.h"
#include "hub/config_names.h"
#include "model/tensor/torch_version.h"
#include "pack_command.h"
#include "packs/admission.h"
#include "plugin/host/registry.h"
#include "train/resume/pack_lock.h"
#include "train/run/run_parts.h"

namespace mortise {

namespace po = boost::program_options;

namespace {

// The packs that the run may use, but for the lock that is to be written.
Result<PluginRegistry> open_unlocked(const LoadedConfig& config) {
  const PackPlaces places = known_pack_places();
  const TrustPolicy machine = TRY(machine_policy(default_env(), places));
  TrustPolicy policy = TRY(parse_trust_policy(choice_name(config.config.plugins.trust), config.where("plugins.trust")));
  policy = tighter(policy, machine);
  policy.must_be_locked = false;
  RegistryOptions options = registry_options(config, kTorchVersion);
  options.admit = TRY(pack_admission(default_env(), places, policy));
  return PluginRegistry::open(options);
}

}  // namespace

Result<> pack_lock(Arguments args) {
  po::options_description options("options", kHelpWidth);
  options.add_options()("output,o", po::value<std::string>(), "the lock; default: mortise.lock next to RUN.toml")(
      "json", "the lock, to standard output too")("help,h", "this text");
  const auto given = TRY(pack_words(args, "lock RUN.toml [key=value ...] [-o FILE]", options));
  if (!given) return {};
  std::vector<std::string> overrides;
  std::string file;
  for (const std::string& word : words_of(*given)) {
    if (word.find('=') != std::string::npos || word.starts_with('~')) {
      overrides.push_back(word);
    } else if (file.empty()) {
      file = word;
    } else {
      return pack_usage_error("lock takes one TOML file and key=value settings");
    }
  }
  if (file.empty()) return pack_usage_error("lock takes a run's TOML file");
  LoadedConfig config = TRY(load_config(default_env(), file, overrides));
  for (const Error& warning : TRY(check_config(config, ConfigUse::kTrain))) log_warn(warning.to_string());
  TRY(resolve_hub_names(default_env(), config, {}));
  const PluginRegistry registry = TRY(open_unlocked(config));
  TRY(check_plugins(registry, config, RunKind::kTrain));
  Json lock = TRY(run_lock_json(registry, config.config));
  if (!config.hub.empty()) lock["hub"] = hub_lock(config.hub);
  std::string output = option_text(*given, "output");
  if (output.empty()) output = (Path(file).parent_path() / "mortise.lock").string();
  TRY(check_distinct({"the run's file", file}, {"-o", output}, "mortise pack lock"));
  const std::string text = dump_json(lock, 2) + "\n";
  TRY(write_file_atomic(default_env(), output, text));
  if (given->count("json") != 0) {
    std::cout << text;
    return {};
  }
  std::cout << output << ": " << lock["packs"].size() << " packs\n";
  return {};
}

}  // namespace mortise
