// import_config: the settings of TRL, verl or ms-swift as a Mortise file that gives the same numbers.
//
// Every setting is translated, listed in a comment as without effect here, or refused with the reason; defaults of the
// other framework that differ from ours are written out. The result has passed load_config and check_config; where the
// other framework gets something from elsewhere (TRL: model and data), a comment says what to fill in. Pure but for
// reading the file. Sources of the meanings: TRL 1.16 with transformers 5.23, verl's ppo_trainer (August 2026),
// ms-swift 4.6.
#pragma once

#include <functional>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "foundation/base/env.h"

namespace mortise {

struct ImportRequest {
  std::string framework;  // "trl", "verl" or "swift"
  std::string where;      // the file's name, for comments and errors
  // TRL and swift: batch sizes are per process. Not given: as the script's launcher says, else 1.
  std::optional<int64_t> num_processes{};
  std::map<std::string, std::string, std::less<>> variables{};    // for a shell script; they win over what it sets
  std::map<std::string, std::string, std::less<>> environment{};  // that a script starts with: HOME
  // Addresses of servers that sample in place of the engine that the framework starts; they win over those of the file.
  std::vector<std::string> servers{};
};

struct ImportedConfig {
  std::string toml;
  std::vector<std::string> warnings;
};

Result<ImportedConfig> import_config(Env& env, const ImportRequest& request);
Result<ImportedConfig> import_config_text(Env& env, const ImportRequest& request, std::string_view text);

// The table of a framework as text: a line for each setting, what becomes of it and why.
Result<std::string> describe_import(std::string_view framework);

}  // namespace mortise
