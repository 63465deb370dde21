// What train, sft and eval share: `RUN.toml [key=value ...]` with a few options, loaded and checked.
#pragma once

#include <boost/program_options.hpp>
#include <functional>
#include <string>
#include <vector>

#include "commands.h"
#include "config/check.h"
#include "config/load.h"
#include "train/resume/resume.h"

namespace mortise {

struct RunCommand {
  LoadedConfig config;
  boost::program_options::variables_map options;
};

// What a command makes of its words, between the steps of parse_run_command. Each may be empty.
struct RunCommandHooks {
  // Before the file is read: may name another one, and settings of lower rank than those of the words.
  std::function<Result<>(const boost::program_options::variables_map& options, std::string& file,
                         std::vector<std::string>& overrides)>
      locate;
  // Before the settings are checked.
  std::function<Result<>(const boost::program_options::variables_map& options, LoadedConfig& config)> adjust;
};

// Parses the words, loads the file and checks it for `use`; warnings go to the log.
Result<RunCommand> parse_run_command(Arguments args, const boost::program_options::options_description& options,
                                     ConfigUse use, const RunCommandHooks& hooks = {});

// --resume and --allow-change, of train and sft.
void add_resume_options(boost::program_options::options_description& options);
ResumeRequest resume_request(const RunCommand& command);

// --dry-run and --json, of train and sft. print_dry_run prints what the run would do, if that is asked for. False: the
// run begins.
void add_dry_run_options(boost::program_options::options_description& options);
Result<bool> print_dry_run(const RunCommand& command, ConfigUse use);

// How such a command ends: the code, or the error on the console and, once the run has a folder, in its log.txt.
int finish_run(const Result<int>& code);

// Names on the console and in log.txt what looks wrong in the run that has just ended in this folder, if anything does.
void log_findings(const Path& folder);

// The help text of such a command.
void print_run_help(const std::string& name, const std::string& text,
                    const boost::program_options::options_description& options, const std::string& file = "RUN.toml");

}  // namespace mortise
