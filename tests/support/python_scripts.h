// Runs Python scripts in one process that stays until the test program ends: importing PEFT takes longer than what a script
// computes with it. Thread rule: one thread at a time.
#pragma once

#include <sys/socket.h>
#include <unistd.h>

#include <string>

#include "foundation/base/env.h"
#include "support/this_build.h"

namespace mortise::test {

// `python` of the first call runs all scripts. Their output is that of the test.
class PythonScripts {
 public:
  // The script's exit status for this argument; -1 if Python ended.
  static int run(const std::string& python, const Path& script, const Path& argument) {
    static const int socket = start(python);
    const std::string line = script.string() + "\t" + argument.string() + "\n";
    if (::send(socket, line.data(), line.size(), MSG_NOSIGNAL) != static_cast<ssize_t>(line.size())) return -1;
    std::string status;
    for (char c = 0; ::read(socket, &c, 1) == 1;) {
      if (c == '\n') return std::stoi(status);
      status += c;
    }
    return -1;
  }

 private:
  static int start(const std::string& python) {
    const std::string driver = std::string(MORTISE_SOURCE_DIR) + "/tests/support/run_scripts.py";
    int ends[2] = {-1, -1};
    if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) != 0) return -1;
    const pid_t child = ::fork();
    if (child == 0) {
      ::dup2(ends[1], 0);
      ::dup2(1, 2);
      ::execl(python.c_str(), python.c_str(), driver.c_str(), nullptr);
      ::_exit(127);
    }
    ::close(ends[1]);
    return ends[0];
  }
};

}  // namespace mortise::test
