// What the rules of a configuration find: problems, which stop a run before it loads anything, and warnings. Plain values.
#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "config/load.h"
#include "foundation/base/result.h"

namespace mortise {

struct ConfigFindings {
  std::vector<Error> problems, warnings;

  // `key`: the setting whose place the message names.
  void error(const LoadedConfig& loaded, std::string_view key, std::string what, std::string next) {
    problems.push_back({ErrorKind::kConfig, std::move(what), loaded.where(key), std::move(next)});
  }
  void warn(const LoadedConfig& loaded, std::string_view key, std::string what, std::string next) {
    warnings.push_back({ErrorKind::kConfig, std::move(what), loaded.where(key), std::move(next)});
  }
};

}  // namespace mortise
