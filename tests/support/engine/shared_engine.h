// The program `mortise` for tests, with engines that are forked from a server which has libtorch loaded (request.h).
#pragma once

#include <sys/file.h>
#include <sys/wait.h>

#include "support/engine/request.h"
#include "support/test_folders.h"

namespace mortise::test {

namespace shared_engine {

// In a process of its own, which belongs to nobody: ctest must not wait for its output, nor end it with one test.
[[noreturn]] inline void become_server(const std::filesystem::path& programs, int socket, int lock) {
  if (::setsid() < 0 || ::fork() != 0) ::_exit(0);
  const int nothing = ::open("/dev/null", O_RDWR);
  for (const int number : {0, 1, 2}) ::dup2(nothing, number);
  socket = ::fcntl(socket, F_DUPFD, 100);
  lock = ::fcntl(lock, F_DUPFD, 100);
  ::close_range(3, 99, 0);
  if (::dup2(socket, 3) != 3 || ::dup2(lock, 4) != 4 || ::chdir("/") != 0) ::_exit(127);
  ::close_range(5, ~0U, 0);
  const std::string server = (programs / "engine_server").string();
  ::execl(server.c_str(), server.c_str(), "--listen", "3", "4", nullptr);
  ::_exit(127);
}

// Starts the server if none runs. Without it, engines start as those of users do.
inline void start_server(const std::filesystem::path& programs) {
  const int lock = ::open((programs / "engine.lock").c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0644);
  if (lock < 0) return;
  if (::flock(lock, LOCK_EX | LOCK_NB) == 0) {  // a server keeps it while it runs
    const int socket = ::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    const EngineAddress address(programs);
    ::unlink((programs / "engine.socket").c_str());
    if (::bind(socket, address.get(), sizeof address.name) == 0 && ::listen(socket, 64) == 0) {
      const pid_t child = ::fork();
      if (child == 0) become_server(programs, socket, lock);
      ::waitpid(child, nullptr, 0);
    }
    ::close(socket);
  }
  ::close(lock);
}

}  // namespace shared_engine

inline std::string program_with_shared_engine() {
  const std::filesystem::path programs = std::filesystem::path(MORTISE_BINARY_DIR) / "test_bin";
  shared_engine::start_server(programs);
  return (programs / "mortise").string();
}

}  // namespace mortise::test
