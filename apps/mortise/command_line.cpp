// Parses the words after a command with Program_options, without abbreviations.
#include "command_line.h"

#include <fmt/core.h>
#include <filesystem>

#include "foundation/base/text.h"
#include "unknown_word.h"

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
  } catch (const po::unknown_option& error) {
    std::vector<std::string> names;
    for (const auto& option : options.options()) names.push_back("--" + option->long_name());
    const std::string given_name = error.get_option_name();  // with its value, of --name=value
    const std::string name = given_name.substr(0, given_name.find('='));
    if (name.find('.') != std::string::npos) {
      const std::string setting = given_name.substr(given_name.find_first_not_of('-'));
      return Error{ErrorKind::kConfig, fmt::format("there is no option {}", quote(name)), command,
                   fmt::format("settings have no dashes: write {}{}", setting, name == given_name ? "=VALUE" : "")};
    }
    return unknown_word("option", name, names, command);
  } catch (const po::error& error) {
    return Error{ErrorKind::kConfig, error.what(), command, fmt::format("`{} --help` shows the usage", command)};
  }
  return given;
}

Result<> check_distinct(const FileOption& input, const FileOption& output, const std::string& command) {
  // Without "new/..", whose folder is only made for the output, and without a slash at the end.
  const auto plain = [](const std::string& text) {
    const auto path = std::filesystem::path(text).lexically_normal();
    return path.has_filename() ? path : path.parent_path();
  };
  std::error_code ignored;  // a file that is not there yet is another one, unless it is spelt alike
  const bool same = std::filesystem::equivalent(input.path, output.path, ignored) ||
                    std::filesystem::equivalent(input.path, plain(output.path), ignored) ||
                    plain(input.path) == plain(output.path);
  if (!same) return {};
  return Error{ErrorKind::kConfig,
               fmt::format("{} and {} are the same file or folder, {}", input.option, output.option, quote(input.path)),
               command, "name another output"};
}

}  // namespace mortise
