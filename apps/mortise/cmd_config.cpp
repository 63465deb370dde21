// `mortise config show|explain|schema|import`: the settings of a run, the meaning of a key, the schema for editors, and
// another framework's file as ours.
//
// Reads and writes the named files. Results go to standard output, warnings and errors to standard error.
#include <cstdlib>
#include <filesystem>
#include <iostream>
#include <span>
#include <string>
#include <vector>

#include "commands.h"
#include "config/check.h"
#include "config/explain.h"
#include "config/show.h"
#include "config_command.h"
#include "foundation/base/text.h"
#include "import/import.h"
#include "unknown_word.h"

namespace mortise {
namespace {

constexpr const char* kConfigHelp = R"(usage: mortise config show [RUN.toml] [key=value ...] [options]
       mortise config explain [KEY | TABLE | preset] [--config RUN.toml] [--json]
       mortise config schema
       mortise config import --from trl|verl|swift FILE [--output RUN.toml [--overwrite]]
                            [--processes N] [--servers URL[,URL...]] [--set NAME=VALUE ...]
       mortise config import --from trl|verl|swift --list

show     prints the resolved configuration as TOML that loads to the same settings. It merges defaults, preset, base
         files, the file and the overrides. A comment shows the value of a key that is left to the policy loss.
  --preset NAME     the same as the override preset=NAME: replaces keys of the file, but not other overrides
  --origins         say in a comment where each key was set
  --set             only what was set, without the defaults
  --check USE       also check the rules between keys, for USE = train, sft, eval, generate or objective
  --json            print JSON
explain  prints the meaning, type, default and range of a key, and its name in verl and TRL. You can also give it their
         name for the key. For a table it lists the keys; without an argument, the tables. For a parameter of a plugin,
         it prints what the plugins say:
           actor.policy_loss.tau_pos, reward.0.pattern    all plugins that have the parameter in this place
           reward.regex.pattern                           the plugin regex
           tau_pos                                        all plugins that have the parameter
  --config FILE     for parameters: only the plugins that this run uses, and its own packs
schema   prints the JSON Schema (draft 2020-12) of a configuration file.
import   translates another framework's settings: YAML, JSON, an argument list or a shell script (trl, swift); YAML or
         Hydra overrides (verl). A comment on each line says which setting it comes from. If a setting would change the
         numbers and Mortise does not support it, the import stops.
  --output FILE     write to FILE instead of standard output
  --overwrite       write there even if the file exists
  --processes N     number of processes that the settings are meant for, because batch sizes of trl and swift are per
                    process. Default: what the script's launcher says (accelerate, torchrun, deepspeed,
                    NPROC_PER_NODE), else 1
  --servers URLS    addresses of vLLM or SGLang servers, with commas between them, that you start. They sample in place
                    of the engine that verl starts (rollout.name) or that TRL and ms-swift run in the trainer
                    (use_vllm). They win over addresses in the file
  --set NAME=VALUE  value of a shell variable; overrides the script. The import reads the script and never
                    runs it. It takes only HOME from your environment
  --list            print how each setting of the framework is translated

Overrides: a.b=VALUE (TOML, bare text, or null), reward.0.weight=2, ~a.b (back to the default).
)";

int print(const std::string& text) {
  std::cout << text << (text.ends_with('\n') ? "" : "\n");  // main looks whether it could be printed
  return 0;
}

constexpr const char* kProgram = "mortise config";

Error bad_usage(std::string what) {
  return {ErrorKind::kConfig, std::move(what), kProgram, "`mortise config --help` shows the usage"};
}

int usage_error(const std::string& what) { return fail(bad_usage(what)); }

struct ShowArguments {
  std::string file;
  std::vector<std::string> overrides;
  ShowOptions options;
  std::string check;
  bool json = false;
};

Result<ShowArguments> parse_show(std::span<const std::string> args) {
  ShowArguments parsed;
  for (size_t i = 0; i < args.size(); ++i) {
    const std::string& arg = args[i];
    if (arg == "--preset" || arg == "--check") {
      if (i + 1 == args.size()) return bad_usage(arg + " needs a name");
      ++i;
      if (arg == "--check") {
        parsed.check = args[i];
      } else {
        parsed.overrides.push_back("preset=" + args[i]);
      }
    } else if (arg == "--origins") {
      parsed.options.origins = true;
    } else if (arg == "--set") {
      parsed.options.only_set = true;
    } else if (arg == "--json") {
      parsed.json = true;
    } else if (arg.starts_with("--")) {
      const std::vector<std::string> known = {"--preset", "--check", "--origins", "--set", "--json"};
      return unknown_word("option", arg, known, kProgram);
    } else if (arg.starts_with('~') || arg.find('=') != std::string::npos) {
      parsed.overrides.push_back(arg);
    } else if (parsed.file.empty()) {
      parsed.file = arg;
    } else {
      return bad_usage(quote(arg) + " is a second file; overrides are written key=value");
    }
  }
  return parsed;
}

Result<ConfigUse> parse_use(const std::string& name) {
  if (name == "train") return ConfigUse::kTrain;
  if (name == "sft") return ConfigUse::kSft;
  if (name == "eval") return ConfigUse::kEval;
  if (name == "generate") return ConfigUse::kGenerate;
  if (name == "objective") return ConfigUse::kObjective;
  return Error{ErrorKind::kConfig, "--check does not know " + quote(name), "",
               "use train, sft, eval, generate or objective"};
}

Result<std::string> show(std::span<const std::string> args, KeyRemarks remarks) {
  ShowArguments parsed = TRY(parse_show(args));
  const LoadedConfig loaded = TRY(load_config(default_env(), parsed.file, parsed.overrides));
  for (const std::string& note : loaded.notes) std::cerr << note << "\n";
  if (!parsed.check.empty()) {
    const ConfigUse use = TRY(parse_use(parsed.check));
    for (const Error& warning : TRY(check_config(loaded, use))) std::cerr << "warning: " << warning.to_string() << "\n";
  }
  if (parsed.json) return dump_json(config_to_json(loaded.config), 2);
  if (remarks != nullptr) parsed.options.remarks = remarks(loaded);
  return config_to_toml(loaded, parsed.options);
}

struct ImportArguments {
  ImportRequest request;
  std::string output;
  bool list = false;
  bool overwrite = false;
};

// "http://a:8000, http://b:8000/" -> the addresses; the import checks them.
std::vector<std::string> addresses_in(std::string_view list) {
  std::vector<std::string> urls;
  for (const std::string_view part : split(list, ',')) {
    std::string& url = urls.emplace_back(trim(part));
    if (url.ends_with('/')) url.pop_back();
  }
  return urls;
}

Result<ImportArguments> parse_import(std::span<const std::string> args) {
  ImportArguments parsed;
  for (size_t i = 0; i < args.size(); ++i) {
    const std::string& arg = args[i];
    if (arg == "--from" || arg == "--output" || arg == "--processes" || arg == "--servers" || arg == "--set") {
      if (i + 1 == args.size()) return bad_usage(arg + " needs a value");
      const std::string& value = args[++i];
      if (arg == "--from") parsed.request.framework = value;
      if (arg == "--output") parsed.output = value;
      if (arg == "--servers") parsed.request.servers = addresses_in(value);
      if (arg == "--set") {
        const size_t equals = value.find('=');
        if (equals == 0 || equals == std::string::npos) return bad_usage("--set needs NAME=VALUE, not " + quote(value));
        parsed.request.variables[value.substr(0, equals)] = value.substr(equals + 1);
      }
      const auto number = parse_i64(value);
      if (arg != "--processes") continue;
      if (!number) return bad_usage("--processes needs a number, not " + quote(value));
      parsed.request.num_processes = *number;
    } else if (arg == "--list") {
      parsed.list = true;
    } else if (arg == "--overwrite") {
      parsed.overwrite = true;
    } else if (arg.starts_with("--")) {
      const std::vector<std::string> known = {"--from",    "--output", "--overwrite", "--processes",
                                              "--servers", "--set",    "--list"};
      return unknown_word("option", arg, known, kProgram);
    } else if (parsed.request.where.empty()) {
      parsed.request.where = arg;
    } else {
      return bad_usage(quote(arg) + " is a second file");
    }
  }
  if (parsed.request.framework.empty()) return bad_usage("--from is not given");
  if (parsed.request.where.empty() != parsed.list) return bad_usage("give one file, or --list");
  return parsed;
}

// Returns nothing if the result went to a file.
Result<std::string> import_file(std::span<const std::string> args) {
  ImportArguments parsed = TRY(parse_import(args));
  if (parsed.list) return describe_import(parsed.request.framework);
  std::error_code missing;  // a file that is not there yet is another one
  if (std::filesystem::equivalent(parsed.request.where, parsed.output, missing))
    return bad_usage("--output names the file that is read");
  if (!parsed.output.empty() && !parsed.overwrite && std::filesystem::is_regular_file(parsed.output)) {
    return Error{ErrorKind::kConfig, "the file of --output exists", parsed.output,
                 "name another file, or give --overwrite"};
  }
  if (const char* home = std::getenv("HOME")) parsed.request.environment["HOME"] = home;
  const ImportedConfig imported = TRY(import_config(default_env(), parsed.request));
  for (const std::string& warning : imported.warnings) std::cerr << "warning: " << warning << "\n";
  if (parsed.output.empty()) return imported.toml;
  TRY(write_file_atomic(default_env(), parsed.output, imported.toml));
  return std::string();
}

// For a key that the policy loss sets: the losses whose paper has a value for it.
std::string published_values(const std::string& name, const std::string& config_file, ParamExplainer explain_param) {
  const std::string key = canonical_key(name);
  constexpr std::string_view kActor = "actor.";
  if (!key.starts_with(kActor)) return "";
  const auto text = explain_param("actor.policy_loss.published_" + key.substr(kActor.size()), config_file, false);
  return text && !text->empty() ? "\n" + *text : "";
}

Result<std::string> explain(std::span<const std::string> args, ParamExplainer explain_param) {
  std::string key, config_file;
  bool json = false;
  for (size_t i = 0; i < args.size(); ++i) {
    const std::string& arg = args[i];
    if (arg == "--json") {
      json = true;
    } else if (arg == "--config") {
      if (i + 1 == args.size()) return bad_usage(arg + " needs a file");
      config_file = args[++i];
    } else if (arg.starts_with("--")) {
      const std::vector<std::string> known = {"--json", "--config"};
      return unknown_word("option", arg, known, kProgram);
    } else if (!key.empty()) {
      return Error{ErrorKind::kConfig, "unexpected argument " + quote(arg), "", "give one key or table"};
    } else {
      key = arg;
    }
  }
  Error unknown;
  if (json) {
    auto object = explain_key_json(key);
    if (object) return dump_json(*object, 2);
    unknown = std::move(object).error();
  } else {
    auto text = explain_key(key);
    if (text) return *text + published_values(key, config_file, explain_param);
    unknown = std::move(text).error();
  }
  auto param = explain_param(key, config_file, json);
  if (param && param->empty()) return unknown;
  return param;
}

}  // namespace

int run_config(std::span<const std::string> args, ParamExplainer explain_param, KeyRemarks remarks) {
  if (args.empty()) {
    std::cerr << kConfigHelp;
    return static_cast<int>(ErrorKind::kConfig);
  }
  for (const std::string& arg : args) {
    if (arg == "--help" || arg == "-h") return print(kConfigHelp);
  }
  const std::string& command = args.front();
  const std::span<const std::string> rest = args.subspan(1);
  if (command == "schema") {
    if (!rest.empty()) return usage_error("unexpected argument " + quote(rest.front()));
    return print(dump_json(config_schema(), 2));
  }
  if (command != "show" && command != "explain" && command != "import")
    return fail(
        unknown_word("command", command, std::vector<std::string>{"show", "explain", "schema", "import"}, kProgram));
  const Result<std::string> text = command == "show"      ? show(rest, remarks)
                                   : command == "explain" ? explain(rest, explain_param)
                                                          : import_file(rest);
  if (!text) return fail(text.error());
  return text->empty() ? 0 : print(*text);
}

}  // namespace mortise
