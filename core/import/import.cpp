// Finds the framework, translates its settings, writes the file, and checks the result.
#include "import/import.h"

#include <fmt/core.h>

#include <algorithm>

#include "config/check.h"
#include "config/fields.h"
#include "config/load.h"
#include "foundation/base/limits.h"
#include "foundation/base/text.h"
#include "import/frameworks.h"

namespace mortise {
namespace {

struct Framework {
  std::string_view name;
  std::string_view title;
  std::string_view version;
  const PeerRules& (*rules)();
};

constexpr Framework kFrameworks[] = {{"trl", "TRL", "TRL 1.16", trl_rules},
                                     {"verl", "verl", "verl of August 2026", verl_rules},
                                     {"swift", "ms-swift", "ms-swift 4.6", swift_rules}};

Result<const Framework*> find_framework(std::string_view name) {
  for (const Framework& framework : kFrameworks) {
    if (framework.name == name || framework.title == name) return &framework;  // "swift" is "ms-swift" too
  }
  return Error{ErrorKind::kConfig, "there is no import from " + quote(name), "", "use one of: trl, verl, swift"};
}

constexpr std::string_view kResult = "result";  // names the written file in the places of errors

// Replaces places in our file by the settings that the lines come from.
std::string with_origin(std::string text, const std::vector<Translation::Line>& lines) {
  const std::string prefix = std::string(kResult) + ":";
  std::string out;
  for (const std::string_view part : split(text, '\n')) {
    std::string line(part);
    if (line.starts_with(prefix)) {
      const size_t end = line.find_first_not_of("0123456789", prefix.size());
      const auto number = parse_u64(std::string_view(line).substr(prefix.size(), end - prefix.size()));
      const size_t rest = line.find(": ");
      if (number && *number >= 1 && *number <= lines.size() && rest != std::string::npos) {
        const std::string& origin = lines[*number - 1].origin;
        line = (origin.empty() ? "" : origin + ": ") + line.substr(rest + 2);
      }
    }
    out.append(out.empty() ? "" : "\n").append(line);
  }
  return out;
}

// Placeholders for what the user must fill in, so that the rules between keys can be checked.
std::vector<std::string> stand_ins(const Translation& t) {
  std::vector<std::string> overrides;
  if (!t.is_set("model.path")) overrides.emplace_back("model.path=model");
  if (!t.is_set("data.train_files")) overrides.emplace_back("data.train_files=train.jsonl");
  const bool validates = t.is_set("trainer.test_freq") || t.is_set("rollout.val_kwargs.n");
  if (validates && !t.is_set("data.val_files")) overrides.emplace_back("data.val_files=val.jsonl");
  if (t.num_rewards() == 0) overrides.emplace_back("reward.0.use=exact_match");
  return overrides;
}

// Comments about the launcher and the number of processes; none if nothing says either.
std::vector<std::string> launch_lines(const Launch& launch, const Processes& processes, bool is_verl) {
  const std::string launcher = launch.how.empty() ? "# " : fmt::format("# Launcher: {}. ", launch.how);
  if (is_verl) {
    if (launch.how.empty()) return {};
    return {launcher + "verl's batch sizes are those of all processes together, so they are the same here.",
            "# To train on N processes: mortise launch --nproc N train FILE (docs/ranks.md)."};
  }
  if (processes.count == 1) {
    if (launch.how.empty()) return {};
    return {launcher + "The batch sizes are those of 1 process."};
  }
  return {fmt::format("{}The batch sizes are those of {} processes together, with any number of ranks.", launcher,
                      processes.count),
          fmt::format("# To train on {0} processes: mortise launch --nproc {0} train FILE (docs/ranks.md).",
                      processes.count)};
}

Result<ImportedConfig> finish(Env& env, Translation& t, const Framework& framework, const std::string& where,
                              const std::vector<std::string>& launch) {
  if (!t.problems().empty()) return join_problems(t.problems());
  t.note_untold();
  std::vector<Translation::Line> lines = t.lines();
  const std::vector<Translation::Line> head = {
      {fmt::format("# From {} by `mortise config import --from {}`.", where, framework.name), ""},
      {fmt::format("# Meanings and defaults: {}. A comment says what each line follows from.", framework.version), ""}};
  for (auto line = t.first_lines().rbegin(); line != t.first_lines().rend(); ++line)
    lines.insert(lines.begin(), {*line, ""});
  for (auto line = launch.rbegin(); line != launch.rend(); ++line) lines.insert(lines.begin(), {*line, ""});
  lines.insert(lines.begin(), head.begin(), head.end());
  ImportedConfig imported;
  for (const Translation::Line& line : lines) imported.toml.append(line.text).append("\n");

  const std::vector<std::string> overrides = stand_ins(t);
  Result<LoadedConfig> loaded = load_config_text(env, imported.toml, kResult, overrides);
  if (!loaded) return Error{ErrorKind::kConfig, with_origin(loaded.error().to_string(), lines), "", ""};
  Result<std::vector<Error>> checked = check_config(*loaded, ConfigUse::kTrain);
  if (!checked) return Error{ErrorKind::kConfig, with_origin(checked.error().to_string(), lines), "", ""};
  imported.warnings = t.warnings();
  for (const Error& warning : *checked) imported.warnings.push_back(with_origin(warning.to_string(), lines));
  return imported;
}

std::string describe(const PeerRule& rule) {
  const std::string name(rule.name), target(rule.target), text(rule.text), values(rule.values);
  switch (rule.action) {
    case PeerAction::kTranslate:
      return fmt::format("{} -> {}{}", name, target, (values.empty() ? "" : fmt::format(" (default {})", values)));
    case PeerAction::kCompute:
      return fmt::format("{} -> {}{}", name, text, (values.empty() ? "" : fmt::format(" (default {})", values)));
    case PeerAction::kNoEffect:
      return fmt::format("{}: without effect: {}{}", name, text,
                         (rule.below.empty() ? "" : fmt::format(" ({})", rule.below)));
    case PeerAction::kRefuse:
      return fmt::format("{}: only {}: {}", name, values, text);
  }
  return name;
}

}  // namespace

Result<ImportedConfig> import_config_text(Env& env, const ImportRequest& request, std::string_view text) {
  const Framework& framework = *TRY(find_framework(request.framework));
  const PeerRules& rules = framework.rules();
  const bool is_verl = request.framework == "verl";
  const int64_t asked = request.num_processes.value_or(1);
  if (asked < 1 || asked > 1'000'000)
    return Error{ErrorKind::kConfig, "the number of processes must be from 1 to 1,000,000", "--processes", ""};
  TRY(check_servers(request.servers));
  PeerSource source{std::string(text), request.where, is_verl, request.variables};
  source.environment = request.environment;
  source.launches = request.framework == "trl";
  PeerFile file = TRY(read_peer_source(source, rules));
  Translation t(std::string(framework.title), rules, std::move(file.settings));
  t.use_servers(request.servers);
  if (is_verl) prepare_verl(t);
  prepare_trackers(t, is_verl);
  prepare_servers(t, request.framework);
  t.apply_rules();
  if (!is_verl && !request.num_processes && !file.launch.unknown.empty())
    t.unknown(file.launch.unknown, request.where, "give the number of processes with --processes N");
  if (t.has_unknown()) return join_problems(t.problems());
  const Processes processes{request.num_processes.value_or(file.launch.processes.value_or(1)),
                            request.num_processes || file.launch.processes};
  if (is_verl) {
    translate_verl(t);
    translate_verl_tools(env, t);
  } else if (request.framework == "trl") {
    translate_trl(t, processes);
  } else {
    translate_swift(t, processes);
  }
  Result<ImportedConfig> imported =
      finish(env, t, framework, request.where, launch_lines(file.launch, processes, is_verl));
  if (imported.ok() && file.num_others > 0) {
    imported->warnings.push_back(
        fmt::format("{} starts {} trainings; only the first was imported", request.where, file.num_others + 1));
  }
  return imported;
}

Result<ImportedConfig> import_config(Env& env, const ImportRequest& request) {
  TRY(find_framework(request.framework));
  Result<std::string> text = env.read_file(request.where, limits::kMaxConfigFileBytes);
  if (!text) {
    Error error = std::move(text).error();
    error.kind = ErrorKind::kConfig;
    return error;
  }
  return import_config_text(env, request, *text);
}

Result<std::string> describe_import(std::string_view framework) {
  const Framework& found = *TRY(find_framework(framework));
  std::string text = fmt::format("How each setting of {} is translated:\n", found.version);
  for (const PeerRule* rule : found.rules().all()) text += fmt::format("  {}\n", describe(*rule));
  return text;
}

}  // namespace mortise
