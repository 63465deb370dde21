// `mortise plugin list|describe|eval|new|check`: lists and describes plugins, runs one on given inputs, makes a project
// for a new one (plugin_new.cpp), and tests a pack against the rules (plugin_check.cpp).
//
// list and describe read the notes of packs and run none of their code.
#include <fmt/core.h>

#include <algorithm>
#include <boost/program_options.hpp>
#include <iostream>
#include <optional>

#include "command_line.h"
#include "commands.h"
#include "experience/plugin_settings.h"
#include "foundation/base/choice.h"
#include "foundation/base/clock.h"
#include "foundation/base/suggest.h"
#include "foundation/base/text.h"
#include "model/tensor/torch_version.h"
#include "packs/admission.h"
#include "plugin/host/kinds/kinds.h"
#include "plugin_check.h"
#include "plugin_eval.h"
#include "plugin_new.h"
#include "plugin_show.h"
#include "unknown_word.h"

namespace mortise {
namespace {

namespace po = boost::program_options;

constexpr const char* kPluginHelp = R"(usage: mortise plugin list [KIND] [--json]
       mortise plugin describe NAME [--kind KIND] [--json]
       mortise plugin describe --all --json
       mortise plugin eval KIND NAME --inputs F --outputs G [--set key=value ...]
       mortise plugin new KIND ID [--lang c|cpp|torch|cuda|rust] [--out DIR]
       mortise plugin check FILE [--only GLOB] [--json]

list      lists every plugin that a config may name, and the packs that were refused, with the reason
describe  shows what a plugin computes, what it needs, and its parameters
eval      runs one plugin on the inputs of a file; `mortise plugin eval --help` describes the formats
new       makes a folder with a working plugin of your own, its test and its build
check     tests a pack against the rules of the SDK; see `mortise plugin check --help`

NAME is the name of a plugin (gspo) or pack.id/plugin (acme.losses/tilted). A version range may follow: gspo@^1.2.
)";

std::string help() { return kPluginHelp + (fmt::format("KIND is {}.\n", kind_list())); }

po::options_description place_options() {
  po::options_description options("where plugins come from", kHelpWidth);
  options.add_options()("plugin", po::value<std::vector<std::string>>()->composing(),
                        "a pack file; wins over all folders")("plugin-path",
                                                              po::value<std::vector<std::string>>()->composing(),
                                                              "a folder of packs; wins over MORTISE_PLUGIN_PATH")(
      "config", po::value<std::string>(), "TOML file of a run; its [plugins] table comes after the two above");
  return options;
}

Result<LoadedConfig> config_of(const po::variables_map& given) {
  if (given.count("config") == 0) return LoadedConfig{};
  return load_config(default_env(), given["config"].as<std::string>(), {});
}

Result<PluginRegistry> open_registry(const po::variables_map& given) {
  const LoadedConfig config = TRY(config_of(given));
  RegistryOptions options = registry_options(config, kTorchVersion);
  const auto put_first = [&](const char* option, std::vector<NamedPlace>& places) {
    if (given.count(option) == 0) return;
    std::vector<NamedPlace> all;
    for (const auto& path : given[option].as<std::vector<std::string>>())
      all.emplace_back(path, "--" + std::string(option));
    all.insert(all.end(), places.begin(), places.end());
    places = std::move(all);
  };
  put_first("plugin", options.files);
  put_first("plugin-path", options.paths);
  options.admit = TRY(pack_admission(default_env(), known_pack_places()));  // nothing revoked is listed or run
  return PluginRegistry::open(options);
}

Error plugin_usage_error(std::string what) {
  return {ErrorKind::kConfig, std::move(what), "mortise plugin", "`mortise plugin --help` shows the usage"};
}

Result<> check_kind(const std::string& kind) {
  const std::string name = short_kind(kind);
  if (find_kind_named(name) != nullptr) return {};
  const std::vector<std::string> kinds = kind_names();
  return Error{ErrorKind::kConfig, "there is no kind " + quote(kind), "mortise plugin", suggest(name, kinds)};
}

// Nothing if only the help was wanted, which is printed.
Result<std::optional<po::variables_map>> parse_or_help(Arguments args, const po::options_description& options) {
  po::variables_map given = TRY(parse_words(args, options, "mortise plugin"));
  if (given.count("help") == 0) return std::optional(std::move(given));
  std::cout << help() << "\n" << options;
  return std::optional<po::variables_map>();
}

Result<> run_list(Arguments args) {
  po::options_description options("options", kHelpWidth);
  options.add_options()("json", "as JSON, with hashes")("help,h", "this text");
  options.add(place_options());
  const std::optional<po::variables_map> parsed = TRY(parse_or_help(args, options));
  if (!parsed) return {};
  const po::variables_map& given = *parsed;
  const auto words = words_of(given);
  if (words.size() > 1) return plugin_usage_error("list takes one kind at most");
  std::string kind;
  if (!words.empty()) {
    TRY(check_kind(words[0]));
    kind = full_kind(words[0]);
  }
  const PluginRegistry registry = TRY(open_registry(given));
  const Json list = list_json(registry, kind);
  if (given.count("json") != 0) {
    std::cout << dump_json(list, 2) << "\n";
  } else {
    print_list(list);
  }
  return {};
}

Result<> describe_all(const PluginRegistry& registry, const std::string& kind) {
  if (!kind.empty()) TRY(check_kind(kind));
  const std::string wanted = kind.empty() ? "" : full_kind(kind);
  Json all = Json::array();
  for (const Candidate& candidate : registry.candidates()) {
    for (const PluginInfo& plugin : candidate.info.plugins) {
      if (!candidate.hidden_by.empty() || (!wanted.empty() && plugin.kind != wanted)) continue;
      all.push_back(describe_json({&candidate.info, &plugin, &candidate}));
    }
  }
  std::cout << dump_json(all, 2) << "\n";
  return {};
}

Result<> run_describe(Arguments args) {
  po::options_description options("options", kHelpWidth);
  options.add_options()("kind", po::value<std::string>(), "only plugins of this kind")(
      "all", "every plugin that a bare name would find")("json", "as JSON")("help,h", "this text");
  options.add(place_options());
  const std::optional<po::variables_map> parsed = TRY(parse_or_help(args, options));
  if (!parsed) return {};
  const po::variables_map& given = *parsed;
  const auto words = words_of(given);
  const bool all_of_them = given.count("all") != 0;
  if (words.size() != (all_of_them ? 0U : 1U)) return plugin_usage_error("describe takes one name, or --all");
  if (all_of_them && given.count("json") == 0) return plugin_usage_error("describe --all is for --json");
  const PluginRegistry registry = TRY(open_registry(given));
  if (all_of_them) return describe_all(registry, given.count("kind") != 0 ? given["kind"].as<std::string>() : "");
  std::vector<PluginRef> refs;
  if (given.count("kind") != 0) {
    const auto kind = given["kind"].as<std::string>();
    TRY(check_kind(kind));
    refs.push_back(TRY(registry.find(kind, words[0])));
  } else {
    refs = TRY(registry.find_all(words[0]));
  }
  if (given.count("json") != 0) {
    Json all = Json::array();
    for (const PluginRef& ref : refs) all.push_back(describe_json(ref));
    std::cout << dump_json(all.size() == 1 ? all[0] : all, 2) << "\n";
    return {};
  }
  for (size_t i = 0; i < refs.size(); ++i) {
    if (i > 0) std::cout << "\n";
    print_description(refs[i]);
  }
  return {};
}

// --- eval ------------------------------------------------------------------------------------------------------------

constexpr std::chrono::milliseconds kLongestRow{60'000};

template <NamedChoice E>
std::vector<std::string> names_of() {
  constexpr auto kNames = choice_names(E{});
  return {kNames.begin(), kNames.end()};
}

// What the config says of a loss or an estimator.
Isolation configured_isolation(const RunConfig& config, std::string_view kind) {
  if (kind == "policy_loss") return config.actor.policy_loss.isolation;
  if (kind == "kl_estimator") return config.actor.kl_isolation;
  if (kind == "advantage_estimator") return config.algorithm.adv_isolation;
  return config.plugins.isolation;
}

// Where a plugin runs and what it may do: as in a run of the config or of the defaults, except for the options.
Result<> read_isolation(const po::variables_map& given, PluginEval& eval) {
  const LoadedConfig config = TRY(config_of(given));
  RewardConfig reward;
  // A file may be long. Without the limits of a run, only a row that hangs is stopped.
  reward.timeout = std::chrono::milliseconds(0);
  reward.row_timeout = kLongestRow;
  for (const RewardConfig& one : config.config.reward) {
    if (one.use != eval.name) continue;
    reward = one;
    break;
  }
  const auto words = [&](const char* option,
                         const std::vector<std::string>& choices) -> Result<std::vector<std::string>> {
    std::vector<std::string> out;
    if (given.count(option) == 0) return out;
    for (const auto& list : given[option].as<std::vector<std::string>>()) {
      for (const std::string_view word : split(list, ',')) out.emplace_back(word);
    }
    for (const std::string& word : out) {
      if (std::find(choices.begin(), choices.end(), word) == choices.end())
        return plugin_usage_error(fmt::format("--{} takes {}, not {}", option, join(choices, ", "), quote(word)));
    }
    return out;
  };
  for (const std::string& word : TRY(words("allow", names_of<WorkerRight>())))
    reward.allow.push_back(*parse_choice<WorkerRight>(word));
  eval.columns = declared_columns(config.config.data.columns);
  if (given.count("column") != 0) {
    for (const std::string& word : given["column"].as<std::vector<std::string>>()) {
      const size_t equals = word.rfind('=');
      const auto type = parse_column_type(equals == std::string::npos ? "" : word.substr(equals + 1));
      if (!type || equals == 0)
        return plugin_usage_error("--column takes NAME=text, integer, number or json, not " + quote(word));
      eval.columns[word.substr(0, equals)] = *type;
    }
  }
  Isolation mode = configured_isolation(config.config, eval.kind);
  const auto modes = TRY(words("isolation", names_of<Isolation>()));
  if (!modes.empty()) mode = *parse_choice<Isolation>(modes.back());
  const bool is_reward = eval.kind == "reward";
  if (is_reward) {
    eval.isolation = isolation_options(config.config.plugins);
    eval.isolation.mode = mode;
    eval.isolation.limits = worker_limits(config.config.plugins, reward);
  } else {
    eval.isolation = step_isolation(config, mode, "--isolation", reward.allow);
    reward.timeout = config.config.plugins.call_timeout;
  }
  if (given.count("timeout") != 0) {
    const auto timeout = parse_duration_ns(given["timeout"].as<std::string>());
    if (!timeout.ok()) return plugin_usage_error("--timeout: " + timeout.error().what);
    reward.timeout = std::chrono::milliseconds(*timeout / 1'000'000);
    reward.row_timeout = {};
  }
  eval.timeout_ms = reward.timeout.count();
  eval.row_timeout_ms = row_timeout_ms(reward);
  return {};
}

Result<PluginEval> read_eval(const po::variables_map& given) {
  PluginEval eval;
  std::vector<std::string> settings;
  if (given.count("set") != 0) settings = given["set"].as<std::vector<std::string>>();
  std::vector<std::string> names;
  // Words with '=' are settings too, so that `--set a=1 b=2` means what it looks like.
  for (const std::string& word : words_of(given))
    (word.find('=') == std::string::npos || word.find('@') != std::string::npos ? names : settings).push_back(word);
  if (names.size() != 2) return plugin_usage_error("eval takes a kind and a name");
  eval.kind = short_kind(names[0]);
  eval.name = names[1];
  TRY(check_kind(eval.kind));
  for (const std::string& setting : settings) {
    const size_t equals = setting.find('=');
    if (equals == std::string::npos || equals == 0)
      return plugin_usage_error(fmt::format("--set {} is not key=value", quote(setting)));
    eval.settings.emplace_back(setting.substr(0, equals), setting.substr(equals + 1));
  }
  if (given.count("inputs") == 0 || given.count("outputs") == 0)
    return plugin_usage_error("eval needs --inputs and --outputs");
  eval.inputs = given["inputs"].as<std::string>();
  eval.outputs = given["outputs"].as<std::string>();
  const FileOption outputs{"--outputs", eval.outputs.string()};
  TRY(check_distinct({"--inputs", eval.inputs.string()}, outputs, "mortise plugin eval"));
  if (given.count("config") != 0)
    TRY(check_distinct({"--config", given["config"].as<std::string>()}, outputs, "mortise plugin eval"));
  eval.seed = given["seed"].as<uint64_t>();
  eval.step = given["step"].as<int64_t>();
  TRY(read_isolation(given, eval));
  return eval;
}

Result<> run_plugin_eval(Arguments args) {
  po::options_description options("options", kHelpWidth);
  options.add_options()("inputs", po::value<std::string>(), "file with the inputs")("outputs", po::value<std::string>(),
                                                                                    "file to write")(
      "set", po::value<std::vector<std::string>>()->composing(),
      "key=value: a parameter of the plugin, or of the aggregation")("seed", po::value<uint64_t>()->default_value(0),
                                                                     "seed of the plugin's random numbers")(
      "step", po::value<int64_t>()->default_value(1), "step number that the plugin gets")("help,h", "this text");
  using Words = std::vector<std::string>;
  po::options_description reward("where it runs (with --config: as the run's file says)", kHelpWidth);
  reward.add_options()("isolation", po::value<Words>(),
                       "auto, process (in workers) or none (in this process). Default: "
                       "auto for rewards, none for losses and estimators")(
      "allow", po::value<Words>()->composing(), "what the workers may use: network, files, programs")(
      "timeout", po::value<std::string>(),
      "time limit, such as \"10s\". A reward has it for all rows, and a fifth of it for one row; default: 60s per "
      "row. A loss or an estimator has it for the call; default: plugins.call_timeout")(
      "column", po::value<Words>()->composing(),
      "type of a data column, for a reward: NAME=TYPE, as in data.columns (text, integer, number or json)");
  options.add(reward);
  options.add(place_options());
  const po::variables_map given = TRY(parse_words(args, options, "mortise plugin"));
  if (given.count("help") != 0) {
    std::cout << "usage: mortise plugin eval KIND NAME --inputs F --outputs G [--set key=value ...]\n"
              << plugin_eval_help() << "\n"
              << options;
    return {};
  }
  const PluginEval eval = TRY(read_eval(given));
  PluginRegistry registry = TRY(open_registry(given));
  Json metrics = TRY(eval_plugin(registry, eval));
  std::cout << dump_json({{"metrics", std::move(metrics)}}) << "\n";
  return {};
}

Result<> run_new(Arguments args) {
  if (!args.empty() && args.front().find('-') != 0) TRY(check_kind(args.front()));
  return run_plugin_new(args);
}

}  // namespace

int cmd_plugin(Arguments args) {
  if (args.empty()) {
    std::cerr << help();
    return static_cast<int>(ErrorKind::kConfig);
  }
  const std::string& command = args.front();
  const Arguments rest = args.subspan(1);
  if (command == "--help" || command == "-h" || command == "help") {
    std::cout << help();
    return 0;
  }
  Result<> done;
  int code = 0;
  if (command == "list") {
    done = run_list(rest);
  } else if (command == "describe") {
    done = run_describe(rest);
  } else if (command == "eval") {
    done = run_plugin_eval(rest);
  } else if (command == "new") {
    done = run_new(rest);
  } else if (command == "check") {
    done = run_plugin_check(rest, &code);
  } else {
    const std::vector<std::string> commands = {"list", "describe", "eval", "new", "check"};
    done = unknown_word("command", command, commands, "mortise plugin");
  }
  if (!done.ok()) return fail(done.error());
  return code;  // main looks whether it could be printed
}

}  // namespace mortise
