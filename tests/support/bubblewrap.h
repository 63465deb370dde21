// Whether programs can be run in sandboxes of bubblewrap here. Thread rule: free functions, which start a process.
#pragma once

#include <cstdlib>
#include <string>

namespace mortise::test {

// The reason to skip a test, with what was not tested, or "". In CI a test may only be skipped because the machine does not
// let bubblewrap work: ./dev installs it.
inline std::string no_bubblewrap(const std::string& not_tested) {
  if (std::system("command -v bwrap >/dev/null") != 0) return "bubblewrap is not installed: " + not_tested;
  if (std::system("bwrap --unshare-all --ro-bind / / /usr/bin/python3 -c 1 >/dev/null 2>&1") == 0) return "";
  return "this machine does not let bubblewrap or /usr/bin/python3 work: " + not_tested;
}

}  // namespace mortise::test
