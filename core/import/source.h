// The file of another framework, in any of the forms it is kept in, as a flat list of settings.
//
// Forms: YAML, JSON (a .json file, or a text that begins with '{'), an argument list (`--key value ...`), and for verl
// Hydra's `key=value`. Argument lists may be a whole shell script, which is read and never run: the command that trains
// is found, and its variables are put in (shell.h, launcher.h). Private to this room.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "config/config_node.h"
#include "import/launcher.h"
#include "import/rules.h"
#include "import/shell.h"

namespace mortise {

struct PeerSetting {
  std::string name;   // as in the rules: "learning_rate", "actor.optim.lr"
  std::string given;  // as written: "actor_rollout_ref.actor.optim.lr"
  Json value;
  std::string raw;        // a single value as written, else empty
  std::string where;      // "run.yaml:12:3"
  std::string unknown{};  // why the value is not known: a variable of the script that nothing sets; else ""
  std::string hint{};     // then: what to do
};

struct PeerSource {
  std::string text;
  std::string where;           // the file's name
  bool dotted = false;         // verl: tables are parts of the name, key=value is a form
  ShellVariables variables{};  // what --set gives
  ShellVariables environment{};
  bool launches = false;  // TRL: options of the launcher may be among the settings
};

// A file as it was read.
struct PeerFile {
  std::vector<PeerSetting> settings;
  Launch launch;
  size_t num_others = 0;  // commands of the script that train, too, and are not read
};

// A table that no rule knows below is one setting with a table as its value. The last of several equal names wins in an
// argument list; in YAML and JSON they are errors.
Result<PeerFile> read_peer_source(const PeerSource& source, const PeerRules& rules);

// What to do if a word needs a variable that is not known; `variable` may be empty.
std::string unknown_word_hint(const std::string& variable);

}  // namespace mortise
