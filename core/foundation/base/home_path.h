// "~/runs" as shells read it. Configs and arguments in quotes reach the program as they are written.
#pragma once

#include <cstdlib>
#include <string>

namespace mortise {

// The path with the user's home folder (HOME) for "~" or a leading "~/". Without HOME, and for all other paths, the path
// as it is. "~name" is not a home folder here. Under AT_SECURE nothing is read from the environment.
[[nodiscard]] inline std::string expand_home(const std::string& path) {
  if (path != "~" && !path.starts_with("~/")) return path;
  const char* home = ::secure_getenv("HOME");
  return home == nullptr || *home == '\0' ? path : home + path.substr(1);
}

}  // namespace mortise
