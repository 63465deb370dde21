#include "command_line.h"

namespace mortise {

namespace po = boost::program_options;

Result<po::variables_map> parse_words(Arguments args, const po::options_description& options,
                                      const std::string& command) {
  po::options_description all;
  all.add(options).add_options()("words", po::value<std::vector<std::string>>()->default_value({}, ""));
  po::positional_options_description positional;
  positional.add("words", -1);
  po::variables_map given;
  try {
    const std::vector<std::string> words(args.begin(), args.end());
    const int style = po::command_line_style::default_style & ~po::command_line_style::allow_guessing;
    po::store(po::command_line_parser(words).options(all).positional(positional).style(style).run(), given);
    po::notify(given);
  } catch (const po::error& error) {
    return Error{ErrorKind::kConfig, error.what(), command, "`" + command + " --help` shows the usage"};
  }
  return given;
}

}  // namespace mortise
