// The program mortise-engine of the tests. It asks the engine server (request.h) for an engine with its own words,
// environment, working folder and descriptors, passes signals on to it, and ends as the engine ends. Where there is no
// server, or a fork of it would not be what a new program is, it becomes the real mortise-engine.
#include <sys/prctl.h>
#include <sys/wait.h>

#include <csignal>
#include <cstdio>
#include <cstdlib>

#include "foundation/base/this_program.h"
#include "support/engine/request.h"

namespace mortise::test {
namespace {

constexpr std::array kPassedOn{SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGUSR1, SIGUSR2};

constexpr int kServerHasEnded = 125;  // no command of mortise ends with it

pid_t g_engine = 0;

// Connected to the server; -1 if there is none.
int connect_to(const EngineAddress& address) {
  const int socket = ::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (::connect(socket, address.get(), address.size) == 0 && is_of_this_user(socket)) return socket;
  ::close(socket);
  return -1;
}

bool on_a_terminal() { return ::isatty(0) != 0 || ::isatty(1) != 0 || ::isatty(2) != 0; }

EngineRequest request_of_this_process(char** words) {
  EngineRequest request;
  for (; *words != nullptr; ++words) request.words.emplace_back(*words);
  request.variables = variables_of_process();
  request.conditions = conditions_of_process(request.variables);
  request.ignored = ignored_signals();
  request.descriptors = inherited_descriptors();
  request.folder = ::open(".", O_PATH | O_DIRECTORY | O_CLOEXEC);
  return request;
}

// Connected to the server that has forked an engine, whose process id is then known; -1 if it has not.
int ask_for_engine(const std::filesystem::path& programs, const EngineRequest& request) {
  const int socket = request.folder < 0 ? -1 : connect_to(EngineAddress(programs, request.conditions));
  if (socket < 0) return -1;
  if (send_request(socket, request) && read_all(socket, &g_engine, sizeof g_engine) && g_engine > 0) return socket;
  ::close(socket);
  return -1;
}

int end_as(int status) {
  if (WIFEXITED(status)) return WEXITSTATUS(status);
  ::prctl(PR_SET_DUMPABLE, 0);  // the engine has dumped its core, if at all
  std::signal(WTERMSIG(status), SIG_DFL);
  sigset_t all;
  sigfillset(&all);
  ::sigprocmask(SIG_UNBLOCK, &all, nullptr);
  ::raise(WTERMSIG(status));
  return 1;
}

int become_real_engine(const std::filesystem::path& programs, char** words) {
  const std::string engine = (programs / "../bin/mortise-engine").string();
  ::execv(engine.c_str(), words);
  std::perror(engine.c_str());
  return 127;
}

int run(char** words) {
  const std::filesystem::path programs = this_program().parent_path();
  if (on_a_terminal()) return become_real_engine(programs, words);
  const EngineRequest request = request_of_this_process(words);
  sigset_t passed_on, before;
  sigemptyset(&passed_on);
  for (const int number : kPassedOn) sigaddset(&passed_on, number);
  ::sigprocmask(SIG_BLOCK, &passed_on, &before);
  const int socket = ask_for_engine(programs, request);
  if (socket >= 0)
    for (const int number : kPassedOn) std::signal(number, [](int signal) { ::kill(g_engine, signal); });
  ::sigprocmask(SIG_SETMASK, &before, nullptr);
  if (socket < 0) return become_real_engine(programs, words);
  const int console = ::fcntl(2, F_DUPFD_CLOEXEC, 3);
  for (const int number : request.descriptors) ::close(number);  // the engine alone has them
  int status = 0;
  if (read_all(socket, &status, sizeof status)) return end_as(status);
  ::dprintf(console, "somebody has ended the engine server of the tests (tests/support/engine) and so this engine\n");
  return kServerHasEnded;
}

}  // namespace
}  // namespace mortise::test

int main(int /*argc*/, char** argv) { return mortise::test::run(argv); }
