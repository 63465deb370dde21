// `mortise config show|explain|schema`: what a run would use, what a key means, what editors read.
//
// Reads the files it is given and nothing else; results go to standard output, warnings and errors to standard error.
#include <iostream>
#include <span>
#include <string>
#include <vector>

#include "config/check.h"
#include "config/explain.h"
#include "config/show.h"
#include "foundation/base/text.h"

namespace mortise {
namespace {

constexpr const char* kHelp = R"(usage: mortise config show [RUN.toml] [key=value ...] [options]
       mortise config explain [KEY | TABLE | preset] [--json]
       mortise config schema

show     prints the resolved configuration: defaults, preset, base files, the file and the overrides merged.
         The output is a TOML file that loads to the same settings.
  --preset NAME   put a preset under the keys that are set (same as the override preset=NAME)
  --origins       a comment behind each key that was set: where
  --set           only what was set, without the defaults
  --check USE     also check the rules between keys, for USE = train, sft, eval, generate or objective
  --json          as JSON
explain  prints the meaning, type, default and range of a key, its name in verl and TRL, or lists the keys of a table.
         Names of TRL and verl are understood too. Without an argument: the tables.
schema   prints the JSON Schema (draft 2020-12) of a configuration file.

Overrides: a.b=VALUE (TOML, bare text, or null), reward.0.weight=2, ~a.b (back to the default).
)";

int fail(const Error& error) {
  std::cerr << "mortise config: " << error.to_string() << "\n";
  return static_cast<int>(error.kind);
}

int usage_error(const std::string& what) {
  return fail({ErrorKind::kConfig, what, "", "`mortise config --help` shows the usage"});
}

int print(const std::string& text) {
  std::cout << text << (text.ends_with('\n') ? "" : "\n") << std::flush;
  if (std::cout.good()) return 0;
  return fail({ErrorKind::kDisk, "standard output could not be written", "", ""});
}

struct ShowArguments {
  std::string file;
  std::vector<std::string> overrides;
  ShowOptions options;
  std::string check;
  bool json = false;
};

Result<ShowArguments> parse_show(std::span<const std::string> args) {
  const auto bad = [](std::string what) {
    return Error{ErrorKind::kConfig, std::move(what), "", "`mortise config --help` shows the usage"};
  };
  ShowArguments parsed;
  for (size_t i = 0; i < args.size(); ++i) {
    const std::string& arg = args[i];
    if (arg == "--preset" || arg == "--check") {
      if (i + 1 == args.size()) return bad(arg + " needs a name");
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
      return bad("unknown option " + quote(arg));
    } else if (arg.starts_with('~') || arg.find('=') != std::string::npos) {
      parsed.overrides.push_back(arg);
    } else if (parsed.file.empty()) {
      parsed.file = arg;
    } else {
      return bad(quote(arg) + " is a second file; overrides are written key=value");
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

Result<std::string> show(std::span<const std::string> args) {
  const ShowArguments parsed = TRY(parse_show(args));
  const LoadedConfig loaded = TRY(load_config(default_env(), parsed.file, parsed.overrides));
  if (!parsed.check.empty()) {
    const ConfigUse use = TRY(parse_use(parsed.check));
    for (const Error& warning : TRY(check_config(loaded, use))) std::cerr << "warning: " << warning.to_string() << "\n";
  }
  if (parsed.json) return dump_json(config_to_json(loaded.config), 2);
  return config_to_toml(loaded, parsed.options);
}

Result<std::string> explain(std::span<const std::string> args) {
  std::string key;
  bool json = false;
  for (const std::string& arg : args) {
    if (arg == "--json") {
      json = true;
    } else if (arg.starts_with("--") || !key.empty()) {
      return Error{ErrorKind::kConfig, "unexpected argument " + quote(arg), "", "give one key or table"};
    } else {
      key = arg;
    }
  }
  if (json) return dump_json(TRY(explain_key_json(key)), 2);
  return explain_key(key);
}

}  // namespace

int cmd_config(std::span<const std::string> args) {
  if (args.empty()) {
    std::cerr << kHelp;
    return static_cast<int>(ErrorKind::kConfig);
  }
  for (const std::string& arg : args) {
    if (arg == "--help" || arg == "-h") return print(kHelp);
  }
  const std::string& command = args.front();
  const std::span<const std::string> rest = args.subspan(1);
  if (command == "schema") {
    if (!rest.empty()) return usage_error("unexpected argument " + quote(rest.front()));
    return print(dump_json(config_schema(), 2));
  }
  if (command != "show" && command != "explain") return usage_error("there is no command 'config " + command + "'");
  const Result<std::string> text = command == "show" ? show(rest) : explain(rest);
  return text ? print(*text) : fail(text.error());
}

}  // namespace mortise
