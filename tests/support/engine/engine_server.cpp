// A process that has loaded the engine and libtorch, and forks an engine for each request (request.h). It has one thread, so
// a fork has the state of a new process that has just loaded its libraries. Where the caller's conditions differ, the fork
// declines.
//
//   engine_server --listen SOCKET   serves the socket; ends after half a minute without engines and requests
//   engine_server WORDS...          is mortise-engine
#include <poll.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/wait.h>

#include <csignal>
#include <cstdlib>

#include "engine_parts.h"
#include "foundation/base/open_files.h"
#include "support/engine/request.h"

namespace mortise::test {
namespace {

constexpr int kIdle_ms = 30'000;
constexpr int kAbove = 300;  // numbers that the caller's descriptors hardly have

// What the program began with. Libraries have added to `environ` since (libtorch_environment.cpp).
std::vector<std::string> first_variables() {
  std::ifstream file("/proc/self/environ");
  std::vector<std::string> all;
  for (std::string one; std::getline(file, one, '\0');) all.push_back(one);
  return all;
}

bool has(const std::vector<std::string>& variables, const std::string& name) {
  return std::ranges::any_of(variables, [&](const std::string& one) { return one.starts_with(name + "="); });
}

void add_what_libraries_set(std::vector<std::string>& variables) {
  const std::vector<std::string> first = first_variables();
  for (char** one = environ; *one != nullptr; ++one) {
    const std::string name = std::string(*one).substr(0, std::string(*one).find('='));
    if (!has(first, name) && !has(variables, name)) variables.emplace_back(*one);
  }
}

bool has_one_thread() {
  std::error_code error;
  const std::filesystem::directory_iterator threads("/proc/self/task", error);
  return !error && std::distance(begin(threads), end(threads)) == 1;
}

std::vector<char*> pointers_to(std::vector<std::string>& texts) {
  std::vector<char*> pointers;
  for (std::string& text : texts) pointers.push_back(text.data());
  pointers.push_back(nullptr);
  return pointers;
}

// Gives the descriptors the numbers that they had, and closes all others but the socket, whose number changes.
bool take_descriptors(const EngineRequest& request, std::vector<int> passed, int& socket) {
  passed.push_back(socket);
  for (int& number : passed) {
    number = ::fcntl(number, F_DUPFD_CLOEXEC, kAbove);
    if (number < 0) return false;
  }
  socket = passed.back();
  const int folder = passed[request.descriptors.size()];
  if (::fchdir(folder) != 0) return false;
  ::close_range(0, kAbove - 1, 0);
  for (size_t i = 0; i < request.descriptors.size(); ++i)
    if (request.descriptors[i] >= kAbove || ::dup2(passed[i], request.descriptors[i]) < 0) return false;
  ::close_range(kAbove, static_cast<unsigned>(socket) - 1, 0);
  ::close_range(static_cast<unsigned>(socket) + 1, ~0U, 0);
  return true;
}

// In the fork: reads the request, and is the engine if it can be. It ends with the server, and it has a process group of its
// own, so that a signal to its group reaches nobody else.
[[noreturn]] void be_engine(int socket, pid_t server) {
  ::setpgid(0, 0);
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (::getppid() != server) ::_exit(127);
  ::close_range(3, static_cast<unsigned>(socket) - 1, 0);  // the sockets of the server and of others
  ::close_range(static_cast<unsigned>(socket) + 1, ~0U, 0);
  static EngineRequest request;  // the engine keeps pointers to words and variables
  const std::vector<int> passed = receive_request(socket, request);
  const bool can_be = !passed.empty() && is_of_this_user(socket) &&
                      request.conditions == conditions_of_process(first_variables()) &&
                      take_descriptors(request, passed, socket);
  const pid_t answer = can_be ? ::getpid() : 0;
  if (!write_all(socket, &answer, sizeof answer) || !can_be) ::_exit(127);
  ::close(socket);
  ignore_signals(request.ignored);
  add_what_libraries_set(request.variables);
  static std::vector<char*> words = pointers_to(request.words), variables = pointers_to(request.variables);
  environ = variables.data();
  ::prctl(PR_SET_NAME, "mortise-engine");
  std::exit(run_program(static_cast<int>(request.words.size()), words.data()));
}

class EngineServer {
 public:
  explicit EngineServer(int socket) : socket_(socket) {
    sigset_t ends;
    sigemptyset(&ends);
    sigaddset(&ends, SIGCHLD);
    ::sigprocmask(SIG_BLOCK, &ends, &before_);
    ended_ = ::signalfd(-1, &ends, SFD_CLOEXEC | SFD_NONBLOCK);
  }

  void serve() {
    while (true) {
      std::vector<pollfd> watched{{socket_, POLLIN, 0}, {ended_, POLLIN, 0}};
      for (const Engine& engine : engines_) watched.push_back({engine.socket, 0, 0});
      if (::poll(watched.data(), watched.size(), kIdle_ms) == 0 && engines_.empty()) return;
      // Whoever asked was killed: its engine must not outlive it.
      for (size_t i = 0; i < engines_.size(); ++i)
        if (watched[i + 2].revents != 0) ::kill(engines_[i].pid, SIGKILL);
      reap();
      if ((watched[0].revents & POLLIN) != 0) start_engine();
    }
  }

 private:
  struct Engine {
    pid_t pid;
    int socket;
  };

  void start_engine() {
    const int asked = ::accept4(socket_, nullptr, nullptr, SOCK_CLOEXEC);
    if (asked < 0) return;
    const pid_t server = ::getpid(), pid = ::fork();
    if (pid == 0) {
      ::sigprocmask(SIG_SETMASK, &before_, nullptr);
      be_engine(asked, server);
    }
    if (pid < 0) ::close(asked);
    if (pid > 0) engines_.push_back({pid, asked});
  }

  void reap() {
    signalfd_siginfo unused{};
    while (::read(ended_, &unused, sizeof unused) > 0) {
    }
    int status = 0;
    for (pid_t pid = ::waitpid(-1, &status, WNOHANG); pid > 0; pid = ::waitpid(-1, &status, WNOHANG)) {
      const auto engine = std::ranges::find(engines_, pid, &Engine::pid);
      if (engine == engines_.end()) continue;
      write_all(engine->socket, &status, sizeof status);
      ::close(engine->socket);
      engines_.erase(engine);
    }
  }

  int socket_, ended_ = -1;
  sigset_t before_{};
  std::vector<Engine> engines_;
};

}  // namespace
}  // namespace mortise::test

int main(int argc, char** argv) {
  if (argc != 3 || std::string_view(argv[1]) != "--listen") return mortise::run_program(argc, argv);
  // A fork of a process with more threads may inherit a lock that nobody releases. Then every engine is a new process.
  if (!mortise::test::has_one_thread()) ::_exit(1);
  mortise::raise_open_files_limit();  // the descriptors need numbers above those that the caller has
  mortise::test::EngineServer(std::atoi(argv[2])).serve();
  ::_exit(0);
}
