// The words after a command, parsed: one way for all commands. Options are never guessed from their beginnings.
#pragma once

#include <boost/program_options.hpp>
#include <iostream>
#include <string>
#include <vector>

#include "commands.h"

namespace mortise {

// Options go to `given` (and to the variables they are bound to), all other words to given["words"], which is always
// there. `command` ("mortise plugin") is where errors say they are from.
Result<boost::program_options::variables_map> parse_words(Arguments args,
                                                          const boost::program_options::options_description& options,
                                                          const std::string& command);

inline std::vector<std::string> words_of(const boost::program_options::variables_map& given) {
  return given["words"].as<std::vector<std::string>>();
}

// One file or folder must not be both input and output: an Error if both options name the same one, by any path.
struct FileOption {
  const char* option;  // "--in"
  std::string path;
};
Result<> check_distinct(const FileOption& input, const FileOption& output, const std::string& command);

// A command whose whole input is a struct: --help, parse, run.
template <class Parsed>
int run_parsed(Arguments args, const char* usage, boost::program_options::options_description (*options_of)(Parsed&),
               Result<Parsed> (*parse)(Arguments), Result<> (*run)(const Parsed&)) {
  if (wants_help(args)) {
    Parsed unused;
    std::cout << usage << "\n" << options_of(unused);
    return 0;
  }
  const auto parsed = parse(args);
  if (!parsed.ok()) return fail(parsed.error());
  const Result<> done = run(*parsed);
  return done.ok() ? 0 : fail(done.error());
}

}  // namespace mortise
