// Options, help and error handling that train, sft and eval share.
#include "run_command.h"

#include <fmt/core.h>
#include <algorithm>
#include <iostream>
#include <set>

#include "command_line.h"
#include "config/fields.h"
#include "config/unused.h"
#include "dist/launch/rank_place.h"
#include "foundation/base/choice.h"
#include "foundation/base/log.h"
#include "foundation/base/shown_text.h"
#include "foundation/base/text.h"
#include "foundation/metrics/live.h"
#include "hub/config_names.h"
#include "packs/trust.h"
#include "report/page.h"
#include "train/loop/trainer.h"
#include "train/resume/resume_words.h"

namespace mortise {

namespace po = boost::program_options;

namespace {

std::string program_of(ConfigUse use) {
  return use == ConfigUse::kSft ? "mortise sft" : use == ConfigUse::kEval ? "mortise eval" : "mortise train";
}

Error second_word(const std::string& word, const std::string& program) {
  if (find_field(word) != nullptr)
    return {ErrorKind::kConfig, fmt::format("the key {} has no value", quote(word)), program,
            fmt::format("write {}=VALUE, without spaces", word)};
  return {ErrorKind::kConfig, quote(word) + " is a second file", program, "give one TOML file and key=value settings"};
}

// plugins.trust as the file has it, made stricter by --locked and by key=value settings, which cannot loosen it.
Result<> tighten_trust(RunCommand& command, const std::string& file, const std::vector<std::string>& overrides) {
  PackTrust& trust = command.config.config.plugins.trust;
  TrustPolicy policy = TRY(parse_trust_policy(choice_name(trust), command.config.where("plugins.trust")));
  const bool overridden = std::any_of(overrides.begin(), overrides.end(), [](const std::string& one) {
    return one.find("plugins") != std::string::npos && one.find("trust") != std::string::npos;
  });
  if (overridden) {
    const LoadedConfig from_file = TRY(load_config(default_env(), file, {}));
    const TrustPolicy before =
        TRY(parse_trust_policy(choice_name(from_file.config.plugins.trust), from_file.where("plugins.trust")));
    if (!(tighter(before, policy) == policy))
      return Error{ErrorKind::kConfig,
                   fmt::format("the command line cannot loosen plugins.trust from {} to {}", quote(before.text()),
                               quote(policy.text())),
                   from_file.where("plugins.trust"), "change it in the file"};
  }
  if (command.options.count("locked") != 0) policy.must_be_locked = true;
  trust = parse_choice<PackTrust>(policy.text()).value();
  return {};
}

// The lock of the run's folder binds a resume. The one next to the file binds every run of the file.
std::vector<Path> locks_of(const RunCommand& command, const Path& file) {
  const TrainerConfig& trainer = command.config.config.trainer;
  const std::string resume = command.options.count("resume") == 0 ? "" : command.options["resume"].as<std::string>();
  const bool starts_over = resume.empty() ? trainer.resume_mode == ResumeMode::kDisable : resume == kResumeNever;
  std::vector<Path> locks;
  if (!starts_over) locks.push_back(Path(trainer.default_local_dir) / "mortise.lock");
  locks.push_back(file.parent_path() / "mortise.lock");
  return locks;
}

}  // namespace

Result<RunCommand> parse_run_command(Arguments args, const po::options_description& options, ConfigUse use,
                                     const RunCommandHooks& hooks) {
  RunCommand command;
  const std::string program = program_of(use);
  command.options = TRY(parse_words(args, options, program));
  std::vector<std::string> overrides;
  std::string file;
  for (const std::string& word : words_of(command.options)) {
    if (word.find('=') != std::string::npos || word.starts_with("~"))
      overrides.push_back(word);
    else if (file.empty())
      file = word;
    else
      return second_word(word, program);
  }
  if (file.empty()) {
    const char* example = use == ConfigUse::kSft ? "quickstart_sft" : "quickstart";
    return Error{ErrorKind::kConfig, "no config file was given", program,
                 fmt::format("give one: `{} configs/{}.toml`", program, example)};
  }
  const std::string given = file;
  if (hooks.locate) TRY(hooks.locate(command.options, file, overrides));
  command.config = TRY(load_config(default_env(), file, overrides));
  if (hooks.adjust) TRY(hooks.adjust(command.options, command.config));
  TRY(tighten_trust(command, file, overrides));
  for (const std::string& note : command.config.notes) log_info(note);
  // The settings of a run's folder are all written down. Nobody has set those that have no effect here.
  std::set<std::string> of_nobody;
  if (file != given) {
    for (const Error& unused : unused_keys(command.config, use))
      if (unused.where.starts_with(file + ":")) of_nobody.insert(unused.to_string());
  }
  for (const Error& warning : TRY(check_config(command.config, use)))
    if (!of_nobody.contains(warning.to_string())) log_warn(warning.to_string());
  TRY(resolve_hub_names(default_env(), command.config, locks_of(command, file)));
  return command;
}

void add_resume_options(po::options_description& options) {
  options.add_options()("resume", po::value<std::string>()->default_value(""),
                        "auto (the newest valid checkpoint of the run's folder), never, or a global_step_N folder. "
                        "Default: trainer.resume_mode")("allow-change",
                                                        "resume although settings differ from those of the checkpoint")(
      "locked", "use only the packs in the mortise.lock next to the file; see `mortise pack lock --help`");
}

ResumeRequest resume_request(const RunCommand& command) {
  return {command.options["resume"].as<std::string>(), command.options.count("allow-change") != 0};
}

void add_dry_run_options(po::options_description& options) {
  options.add_options()(
      "dry-run",
      "print the resolved config, the batch arithmetic, a memory estimate and what would be resumed; run nothing")(
      "json", "with --dry-run: the same as one JSON object");
}

Result<bool> print_dry_run(const RunCommand& command, ConfigUse use) {
  const bool json = command.options.count("json") != 0;
  if (command.options.count("dry-run") != 0) {
    const RankPlace place = TRY(find_rank_place(process_variables()));
    std::cout << TRY(dry_run(default_env(), command.config, use, json, resume_request(command), place.size));
    return true;
  }
  if (!json) return false;
  return Error{ErrorKind::kConfig, "--json belongs to --dry-run", program_of(use),
               "a run writes its numbers as JSON to metrics.jsonl and updates.jsonl"};
}

int finish_run(const Result<int>& code) {
  if (code.ok()) return *code;
  live_end("failed");
  log_progress_line("");
  log_error(code.error());
  return static_cast<int>(code.error().kind);
}

void log_findings(const Path& folder) {
  const auto findings = find_faults(default_env(), folder);
  if (!findings.ok()) return log_warn("the run's numbers could not be read again: " + findings.error().to_string());
  for (const Finding& finding : *findings)
    log_info(fmt::format("looks wrong: {}. {} {} ({})", finding.title, one_line(finding.evidence), finding.advice,
                         docs_of(finding)));
}

void print_run_help(const std::string& name, const std::string& text, const po::options_description& options,
                    const std::string& file) {
  std::cout << "usage: mortise " << name << " " << file << " [key=value ...] [options]\n\n"
            << text << "\n\n"
            << options
            << "\nkey=value overrides a setting: actor.policy_loss.loss_mode=gspo rollout.n=16 reward.0.weight=2\n"
               "`mortise config explain KEY` says what a key means.\n";
}

}  // namespace mortise
