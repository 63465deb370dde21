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
};

// Base of the classes that hold rules. Borrows the configuration and the findings, to which it adds.
class ConfigRules {
 public:
  ConfigRules(const LoadedConfig& loaded, ConfigFindings& found)
      : loaded_(loaded), config_(loaded.config), found_(found) {}

 protected:
  // `key`: the setting whose place the message names.
  void error(std::string_view key, std::string what, std::string next) {
    found_.problems.push_back({ErrorKind::kConfig, std::move(what), loaded_.where(key), std::move(next)});
  }
  void warn(std::string_view key, std::string what, std::string next = "") {
    found_.warnings.push_back({ErrorKind::kConfig, std::move(what), loaded_.where(key), std::move(next)});
  }

  const LoadedConfig& loaded_;
  const RunConfig& config_;
  ConfigFindings& found_;
};

}  // namespace mortise
