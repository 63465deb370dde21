// The file of another framework, in any of the forms it is kept in, as a flat list of settings.
//
// Forms: YAML, JSON (a .json file, or a text that begins with '{'), an argument list (`--key value ...`), and for verl
// Hydra's `key=value`. Argument lists may be a whole shell command: what stands before the first argument is passed
// over, and so is what comes behind an operator (| tee log, 2>&1); quotes, comments and continued lines are understood,
// variables are refused. Private to this room.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "config/config_node.h"
#include "config/import/rules.h"

namespace mortise {

struct PeerSetting {
  std::string name;   // as in the rules: "learning_rate", "actor.optim.lr"
  std::string given;  // as written: "actor_rollout_ref.actor.optim.lr"
  Json value;
  std::string raw;    // a single value as written, else empty
  std::string where;  // "run.yaml:12:3"
};

struct PeerSource {
  std::string text;
  std::string where;    // the file's name
  bool dotted = false;  // verl: tables are parts of the name, key=value is a form
};

// A table that no rule knows below is one setting with a table as its value. The last of several equal names wins in an
// argument list; in YAML and JSON they are errors.
Result<std::vector<PeerSetting>> read_peer_source(const PeerSource& source, const PeerRules& rules);

// Words of a shell command: split at white space, quotes and backslashes taken off, comments left out.
struct ShellWord {
  std::string text;
  std::string where;
  bool quoted = false;  // some of it: no operator of the shell
};
Result<std::vector<ShellWord>> shell_words(std::string_view text, std::string_view where);

}  // namespace mortise
