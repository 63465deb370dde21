#include "run_command.h"

#include "command_line.h"
#include "config/fields.h"
#include "foundation/base/log.h"
#include "foundation/base/text.h"

namespace mortise {

namespace po = boost::program_options;

namespace {

std::string program_of(ConfigUse use) {
  return use == ConfigUse::kSft ? "mortise sft" : use == ConfigUse::kEval ? "mortise eval" : "mortise train";
}

Error second_word(const std::string& word, const std::string& program) {
  if (find_field(word) != nullptr)
    return {ErrorKind::kConfig, "the key " + quote(word) + " has no value", program, "write " + word + "=VALUE"};
  return {ErrorKind::kConfig, quote(word) + " is a second file", program, "give one TOML file and key=value settings"};
}

}  // namespace

Result<RunCommand> parse_run_command(Arguments args, const po::options_description& options, ConfigUse use) {
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
    return Error{ErrorKind::kConfig, "no config file was given", program,
                 "give one: `" + program + " configs/quickstart.toml`"};
  }
  command.config = TRY(load_config(default_env(), file, overrides));
  for (const std::string& note : command.config.notes) log_info(note);
  for (const Error& warning : TRY(check_config(command.config, use))) log_warn(warning.to_string());
  return command;
}

void add_resume_options(po::options_description& options) {
  options.add_options()("resume", po::value<std::string>()->default_value(""),
                        "auto (the newest valid checkpoint of the run's folder), never, or a global_step_N folder; "
                        "default: trainer.resume_mode")(
      "allow-change", "resume with settings that differ from those of the run in the folder");
}

ResumeRequest resume_request(const RunCommand& command) {
  return {command.options["resume"].as<std::string>(), command.options.count("allow-change") != 0};
}

int finish_run(const Result<int>& code) {
  if (code.ok()) return *code;
  log_progress_line("");
  log_error(code.error());
  return static_cast<int>(code.error().kind);
}

void print_run_help(const std::string& name, const std::string& text, const po::options_description& options) {
  std::cout << "usage: mortise " << name << " RUN.toml [key=value ...] [options]\n\n"
            << text << "\n\n"
            << options
            << "\nSettings are overridden as in `actor.policy_loss.loss_mode=gspo rollout.n=16 reward.0.weight=2`;\n"
               "`mortise config explain KEY` tells what a key means.\n";
}

}  // namespace mortise
