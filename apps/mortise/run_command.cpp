#include "run_command.h"

#include "foundation/base/log.h"

namespace mortise {

namespace po = boost::program_options;

Result<RunCommand> parse_run_command(Arguments args, const po::options_description& options, ConfigUse use) {
  po::options_description all;
  all.add(options).add_options()("words", po::value<std::vector<std::string>>());
  po::positional_options_description positional;
  positional.add("words", -1);
  RunCommand command;
  try {
    const std::vector<std::string> words(args.begin(), args.end());
    po::store(po::command_line_parser(words).options(all).positional(positional).run(), command.options);
    po::notify(command.options);
  } catch (const po::error& error) {
    return Error{ErrorKind::kConfig, error.what(), "command line", "see --help"};
  }
  std::vector<std::string> overrides;
  std::string file;
  if (command.options.count("words") != 0) {
    for (const std::string& word : command.options["words"].as<std::vector<std::string>>()) {
      if (word.find('=') != std::string::npos || word.starts_with("~"))
        overrides.push_back(word);
      else if (file.empty())
        file = word;
      else
        return Error{ErrorKind::kConfig, "a second file '" + word + "'", "command line",
                     "give one TOML file and key=value settings"};
    }
  }
  if (file.empty()) return Error{ErrorKind::kConfig, "no config file was given", "command line", "see --help"};
  command.config = TRY(load_config(default_env(), file, overrides));
  for (const Error& warning : TRY(check_config(command.config, use))) log_warn(warning.to_string());
  return command;
}

void print_run_help(const std::string& name, const std::string& text, const po::options_description& options) {
  std::cout << "usage: mortise " << name << " RUN.toml [key=value ...] [options]\n\n"
            << text << "\n\n"
            << options
            << "\nSettings are overridden as in `actor.policy_loss.loss_mode=gspo rollout.n=16 reward.0.weight=2`;\n"
               "`mortise config explain KEY` tells what a key means.\n";
}

}  // namespace mortise
