// mortise serve --ui: the report of runs as it grows, and a playground with their checkpoints and with model folders.
#pragma once

#include <string>
#include <vector>

#include "foundation/base/result.h"

namespace mortise {

struct ServeUiArguments {
  std::vector<std::string> folders;    // folders of runs or models
  std::vector<std::string> overrides;  // KEY=VALUE
  std::string host;
  int port = 0;
  std::string token;        // empty: a new one
  bool tells_token = true;  // false: the user has it
  bool json = false;
};

// Until a signal comes.
Result<> serve_ui(const ServeUiArguments& args);

}  // namespace mortise
