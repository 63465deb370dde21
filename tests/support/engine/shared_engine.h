// The program `mortise` for tests, with engines that are forked from a server which has libtorch loaded (request.h).
#pragma once

#include <sys/wait.h>

#include "support/engine/request.h"
#include "support/this_build.h"

namespace mortise::test {

namespace shared_engine {

// In a process of its own, which belongs to nobody: ctest must not wait for its output, nor end it with one test.
[[noreturn]] inline void become_server(const std::filesystem::path& programs, int socket) {
  if (::setsid() < 0 || ::fork() != 0) ::_exit(0);
  const int nothing = ::open("/dev/null", O_RDWR);
  for (const int number : {0, 1, 2}) ::dup2(nothing, number);
  socket = ::fcntl(socket, F_DUPFD, 100);
  if (::dup2(socket, 3) != 3 || ::chdir("/") != 0) ::_exit(127);
  ::close_range(4, ~0U, 0);
  const std::string server = (programs / "engine_server").string();
  ::execl(server.c_str(), server.c_str(), "--listen", "3", nullptr);
  ::_exit(127);
}

// Starts the server of this process's conditions if none runs. Without it, engines start as those of users do.
inline void start_server(const std::filesystem::path& programs) {
  const EngineAddress address(programs, conditions_of_process(variables_of_process()));
  const int socket = ::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
  // A server that runs has the name.
  if (::bind(socket, address.get(), address.size) == 0 && ::listen(socket, 64) == 0) {
    const pid_t child = ::fork();
    if (child == 0) become_server(programs, socket);
    ::waitpid(child, nullptr, 0);
  }
  ::close(socket);
}

}  // namespace shared_engine

inline std::string program_with_shared_engine() {
  const std::filesystem::path build = MORTISE_BINARY_DIR, programs = build / "test_bin";
  if (!std::filesystem::exists(programs)) return (build / "bin/mortise").string();  // a bundle has no server
  shared_engine::start_server(programs);
  return (programs / "mortise").string();
}

}  // namespace mortise::test
