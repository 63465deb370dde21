#include "config/import/import.h"

#include <algorithm>

#include "config/check.h"
#include "config/fields.h"
#include "config/import/frameworks.h"
#include "config/load.h"
#include "foundation/base/limits.h"
#include "foundation/base/text.h"

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
    if (framework.name == name) return &framework;
  }
  return Error{ErrorKind::kConfig, "there is no import from " + quote(name), "", "use trl, verl or swift"};
}

constexpr std::string_view kResult = "result";  // stands for the written file in the places of errors

// Places in our file become the settings that the lines follow from.
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

// Stand-ins for what is still to be filled in, so that the rules between keys can be checked.
std::vector<std::string> stand_ins(const Translation& t) {
  std::vector<std::string> overrides;
  if (!t.is_set("model.path")) overrides.emplace_back("model.path=model");
  if (!t.is_set("data.train_files")) overrides.emplace_back("data.train_files=train.jsonl");
  const bool validates = t.is_set("trainer.test_freq") || t.is_set("rollout.val_kwargs.n");
  if (validates && !t.is_set("data.val_files")) overrides.emplace_back("data.val_files=val.jsonl");
  if (t.num_rewards() == 0) overrides.emplace_back("reward.0.use=exact_match");
  return overrides;
}

Result<ImportedConfig> finish(Env& env, Translation& t, const Framework& framework, const std::string& where) {
  if (!t.problems().empty()) return join_problems(t.problems());
  t.note_untold();
  std::vector<Translation::Line> lines = t.lines();
  const std::vector<Translation::Line> head = {
      {"# From " + where + " by `mortise config import --from " + std::string(framework.name) + "`.", ""},
      {"# Meanings and defaults: " + std::string(framework.version) + ". A comment says what each line follows from.",
       ""}};
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
      return name + " -> " + target + (values.empty() ? "" : " (default " + values + ")");
    case PeerAction::kCompute:
      return name + " -> " + text + (values.empty() ? "" : " (default " + values + ")");
    case PeerAction::kNoEffect:
      return name + ": without effect: " + text + (rule.below.empty() ? "" : " (" + std::string(rule.below) + ")");
    case PeerAction::kRefuse:
      return name + ": only " + values + ": " + text;
  }
  return name;
}

}  // namespace

Result<ImportedConfig> import_config_text(Env& env, const ImportRequest& request, std::string_view text) {
  const Framework& framework = *TRY(find_framework(request.framework));
  const PeerRules& rules = framework.rules();
  const bool is_verl = request.framework == "verl";
  if (request.num_processes < 1 || request.num_processes > 1'000'000)
    return Error{ErrorKind::kConfig, "the number of processes must be at least 1", "", ""};
  const PeerSource source{std::string(text), request.where, is_verl};
  std::vector<PeerSetting> settings = TRY(read_peer_source(source, rules));
  Translation t(std::string(framework.title), rules, std::move(settings));
  if (is_verl) prepare_verl(t);
  t.apply_rules();
  if (is_verl) {
    translate_verl(t);
  } else if (request.framework == "trl") {
    translate_trl(t, request.num_processes);
  } else {
    translate_swift(t, request.num_processes);
  }
  return finish(env, t, framework, request.where);
}

Result<ImportedConfig> import_config(Env& env, const ImportRequest& request) {
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
  std::string text = "Settings of " + std::string(found.version) + " and what becomes of them:\n";
  for (const PeerRule* rule : found.rules().all()) text += "  " + describe(*rule) + "\n";
  return text;
}

}  // namespace mortise
