// The resolved config as text: TOML that loads back to an equal RunConfig, or JSON.
//
// Every key is written, in the order of fields.h. Doubles have the shortest form that reads back as the same bits. Keys
// that are null are comments. Logins in URLs and values of secret parameters are replaced, so that no shown or written
// config has them. No state of its own.
#pragma once

#include <map>
#include <string>

#include "config/load.h"

namespace mortise {

struct ShowOptions {
  bool origins = false;   // a comment behind each key that was set: where
  bool only_set = false;  // leave out keys that nobody set and that have their default
  // A comment after a key's line: "actor.clip_ratio_low" -> "gspo: 0.0003", the value that a plugin chooses.
  std::map<std::string, std::string> remarks = {};
};

std::string config_to_toml(const LoadedConfig& loaded, const ShowOptions& options = {});
std::string config_to_toml(const RunConfig& config);
Json config_to_json(const RunConfig& config);
// Every key with its value as JSON text: "reward.0.weight" -> "1.0". This is the form that two runs are compared in.
std::map<std::string, std::string> flat_settings(const RunConfig& config);

}  // namespace mortise
