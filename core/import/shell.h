// Reads the shell script that starts a run of another framework, without executing it: its variables, and the training
// command with its words as the shell would pass them.
//
// Understood: quotes, comments, continued lines, assignments (also with export, declare, +=), arrays, $NAME, ${NAME},
// ${NAME:-text}, :=, :+, :?, - and +, ${NAME[@]}, ${#NAME[@]}, $((arithmetic)), redirections, pipes, here documents.
// Unknown, each with its reason: the output of a command ($(...)), arguments of the script ($1), variables that nothing
// sets, and those that are set under a condition or in a loop. A word that needs one of these keeps the reason, and
// only the reader of the word decides whether that matters. The user's variables (--set) win over the script's. Private
// to this room. Threading: pure functions. Cost: linear in the text, except for what the script repeats (limited).
#pragma once

#include <functional>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "foundation/base/result.h"

namespace mortise {

struct ShellWord {
  std::string text;
  std::string where;    // "run.sh:12"
  std::string unknown;  // why the text is not known; "" if it is
  std::string name;     // the variable that would make it known, for --set; may be empty
};

using ShellVariables = std::map<std::string, std::string, std::less<>>;

// A command with its words, and the variables that its environment has beyond the script's own.
struct ShellCommand {
  std::vector<ShellWord> words;
  std::map<std::string, ShellWord, std::less<>> environment;  // exported, or written in front of the command
};

struct ShellScript {
  std::vector<ShellCommand> commands;  // in order; lists of arguments without a command are one of them
};

// `given`: what --set says. Errors: a quote that is not closed, a text that grows without end.
Result<ShellScript> read_shell(std::string_view text, std::string_view where, const ShellVariables& given,
                               const ShellVariables& environment = {});

}  // namespace mortise
