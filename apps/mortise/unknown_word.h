// The error for a word of the command line that is no option or command, with the names that are near it.
#pragma once

#include <span>
#include <string>

#include "foundation/base/result.h"
#include "foundation/base/suggest.h"
#include "foundation/base/text.h"

namespace mortise {

// `what`: "option" or "command"; `program`: "mortise plugin", where errors say they are from.
inline Error unknown_word(const std::string& what, const std::string& word, std::span<const std::string> known,
                          const std::string& program) {
  std::string next = did_you_mean(word, known);
  if (next.empty()) next = what == "command" ? use_one_of(known) : "`" + program + " --help` lists them";
  return {ErrorKind::kConfig, "there is no " + what + " " + quote(word), program, std::move(next)};
}

inline Error missing_command(std::span<const std::string> known, const std::string& program) {
  return {ErrorKind::kConfig, "a command is missing", program, use_one_of(known)};
}

}  // namespace mortise
