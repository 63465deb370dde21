// The loop of the fork server: loads the pack, forks and reaps workers.
#include "plugin/worker/fork_server.h"

#include <fmt/core.h>
#include <poll.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <map>

#include "foundation/base/open_files.h"
#include "mortise/abi.h"
#include "plugin/worker/serve.h"

namespace mortise {
namespace {

constexpr int kLoadSeconds = 60;  // a load that hangs ends by SIGALRM, even after the trainer has ended

Error system_error(const char* operation) {
  const int code = errno;
  return {ErrorKind::kPlugin, fmt::format("{} failed: {}", operation, std::strerror(code)), "mortise-worker",
          resource_advice(code, "")};
}

int64_t num_threads() {
  std::error_code ignored;
  int64_t count = 0;
  for (auto it = std::filesystem::directory_iterator("/proc/self/task", ignored);
       it != std::filesystem::directory_iterator(); it.increment(ignored))
    ++count;
  return count;
}

class ForkServer {
 public:
  ForkServer(Fd socket, WorkerSystem& system) : system_(system), channel_(std::move(socket), system) {}

  Result<> run() {
    auto ended = keep();
    for (const auto& [pid, worker] : workers_) ::kill(-pid, SIGKILL);
    workers_.clear();
    do end_strays();
    while (::waitpid(-1, nullptr, 0) > 0);
    if (channel_.closed()) return {};  // the trainer has hung up, perhaps within an answer
    return ended;
  }

 private:
  Result<> keep() {
    if (const auto started = start(); !started.ok()) return channel_.send(kError, encode(started.error()));
    TRY(load());
    while (!channel_.closed()) {
      TRY(wait_for_news());
      reap();
      while (auto frame = TRY(channel_.receive(0))) TRY(answer(*frame));
    }
    return {};
  }

  Result<> start() {
    // A worker's children come here when it dies, so that they can be ended too.
    ::prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0);
    sigset_t child;
    sigemptyset(&child);
    sigaddset(&child, SIGCHLD);
    ::sigprocmask(SIG_BLOCK, &child, nullptr);
    signals_ = Fd(system_.signalfd(&child, SFD_CLOEXEC | SFD_NONBLOCK));
    if (!signals_.valid()) return system_error("signalfd");
    return channel_.send(kHello, encode(HelloMessage{kProtocol, MORTISE_ABI_MINOR}));
  }

  Result<> load() {
    const std::optional<Frame> frame = TRY(channel_.receive(-1));
    if (!frame) return {};  // the trainer has ended
    TRY(decode(frame->body, load_));
    LoadedMessage loaded;
    const itimerval limit{{0, 0}, {kLoadSeconds, 0}}, none{};
    ::setitimer(ITIMER_REAL, &limit, nullptr);
    std::error_code unknown;  // a missing file, which loading it will report
    const uintmax_t pack_bytes = std::filesystem::file_size(load_.path, unknown);
    auto limits = apply_limits(load_.limits, unknown ? 0 : pack_bytes);
    if (!limits.ok()) return channel_.send(kError, encode(limits.error()));
    loaded.limits = *limits;
    guard_ = fork_server_guard(load_.limits);
    if (!load_.load_in_worker) {
      const auto plugin = load_for_worker(load_);
      if (!plugin.ok()) return channel_.send(kError, encode(plugin.error()));
    }
    ::setitimer(ITIMER_REAL, &none, nullptr);
    loaded.num_threads = num_threads();
    return channel_.send(kLoaded, encode(loaded));
  }

  Result<> wait_for_news() {
    pollfd entries[] = {{channel_.fd(), POLLIN, 0}, {signals_.get(), POLLIN, 0}};
    if (system_.poll(entries, 2, -1) < 0 && errno != EINTR) return system_error("poll");
    return {};
  }

  Result<> answer(Frame& frame) {
    WorkerMessage asked;
    if (frame.kind == kFork && frame.fds.size() == 1) {
      TRY(decode(frame.body, asked));
      return start_worker(asked.worker, std::move(frame.fds.front()));
    }
    if (frame.kind == kKill) {
      TRY(decode(frame.body, asked));
      kill_worker(asked.worker);
      return {};
    }
    return Error{ErrorKind::kPlugin, "unknown message " + std::to_string(frame.kind), "mortise-worker", ""};
  }

  Result<> start_worker(int64_t worker, Fd socket) {
    const pid_t server = ::getpid();
    const pid_t pid = system_.fork();
    if (pid < 0) return channel_.send(kForkFailed, encode(ForkFailedMessage{worker, errno}));
    if (pid == 0) be_worker(std::move(socket), server);
    ::setpgid(pid, pid);
    workers_[pid] = worker;
    return {};
  }

  // Its number is not used again until reap() has reported how it ended.
  void kill_worker(int64_t worker) const {
    for (const auto& [pid, number] : workers_) {
      if (number == worker) ::kill(pid, SIGKILL);
    }
  }

  [[noreturn]] void be_worker(Fd socket, pid_t server) {
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (::getppid() != server) ::_exit(0);
    ::setpgid(0, 0);
    ::prctl(PR_SET_CHILD_SUBREAPER, 0, 0, 0, 0);
    signals_.reset();
    channel_ = Channel();
    sigset_t none;
    sigemptyset(&none);
    ::sigprocmask(SIG_SETMASK, &none, nullptr);
    Channel channel(std::move(socket), system_);
    protect_fork_server(guard_);
    serve(channel, load_, system_);
    // No exit handlers: they belong to the fork server, and code of the pack may still run.
    ::_exit(0);
  }

  void reap() {
    signalfd_siginfo news[8];
    while (::read(signals_.get(), news, sizeof news) > 0) {
    }
    while (true) {
      siginfo_t ended{};
      // Its group first, while the number still belongs to it.
      if (::waitid(P_ALL, 0, &ended, WEXITED | WNOHANG | WNOWAIT) != 0 || ended.si_pid == 0) return;
      const pid_t pid = ended.si_pid;
      const auto it = workers_.find(pid);
      if (it != workers_.end()) ::kill(-pid, SIGKILL);
      int status = 0;
      ::waitpid(pid, &status, 0);
      if (it == workers_.end()) continue;  // a child that a worker left behind
      const ExitedMessage exited{it->second, status};
      workers_.erase(it);
      end_strays();
      (void)channel_.send(kExited, encode(exited));
    }
  }

  // Processes that a dead worker started are now ours, if they left the worker's group (as a reward's own interpreter
  // does). Their ends arrive like any child's.
  void end_strays() const {
    std::ifstream children("/proc/thread-self/children");
    pid_t pid = 0;
    while (children >> pid) {
      if (workers_.count(pid) != 0) continue;
      ::kill(-pid, SIGKILL);
      ::kill(pid, SIGKILL);
    }
  }

  WorkerSystem& system_;
  Channel channel_;
  Fd signals_;
  LoadMessage load_;
  std::string guard_;  // the filter under which workers start
  std::map<pid_t, int64_t> workers_;
};

}  // namespace

Result<> run_fork_server(Fd socket, WorkerSystem& system) { return ForkServer(std::move(socket), system).run(); }

}  // namespace mortise
