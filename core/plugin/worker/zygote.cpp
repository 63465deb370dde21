#include "plugin/worker/zygote.h"

#include <poll.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/syscall.h>
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

#include "mortise/abi.h"
#include "plugin/worker/serve.h"

namespace mortise {
namespace {

constexpr int kLoadSeconds = 60;  // a load that hangs ends by SIGALRM, even when the trainer is gone

Error system_error(const char* operation) {
  return {ErrorKind::kPlugin, std::string(operation) + " failed: " + std::strerror(errno), "mortise-worker", ""};
}

int64_t num_threads() {
  std::error_code ignored;
  int64_t count = 0;
  for (auto it = std::filesystem::directory_iterator("/proc/self/task", ignored);
       it != std::filesystem::directory_iterator(); it.increment(ignored))
    ++count;
  return count;
}

class Zygote {
 public:
  explicit Zygote(Fd socket) : channel_(std::move(socket)) {}

  Result<> run() {
    auto ended = keep();
    for (const auto& [pid, worker] : workers_) ::kill(-pid, SIGKILL);
    workers_.clear();
    do end_strays();
    while (::waitpid(-1, nullptr, 0) > 0);
    if (channel_.closed()) return {};  // the trainer has hung up, perhaps amid an answer
    return ended;
  }

 private:
  Result<> keep() {
    TRY(start());
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
    signals_ = Fd(::signalfd(-1, &child, SFD_CLOEXEC | SFD_NONBLOCK));
    if (!signals_.valid()) return system_error("signalfd");
    return channel_.send(kHello, encode(HelloMessage{kProtocol, MORTISE_ABI_MINOR}));
  }

  Result<> load() {
    const std::optional<Frame> frame = TRY(channel_.receive(-1));
    if (!frame) return {};  // the trainer has gone
    TRY(decode(frame->body, load_));
    LoadedMessage loaded;
    const itimerval limit{{0, 0}, {kLoadSeconds, 0}}, none{};
    ::setitimer(ITIMER_REAL, &limit, nullptr);
    std::error_code unknown;  // of a file that is not there, which loading it will tell
    const uintmax_t pack_bytes = std::filesystem::file_size(load_.path, unknown);
    auto limits = apply_limits(load_.limits, unknown ? 0 : pack_bytes);
    if (!limits.ok()) return channel_.send(kError, encode(limits.error()));
    loaded.limits = *limits;
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
    if (::poll(entries, 2, -1) < 0 && errno != EINTR) return system_error("poll");
    return {};
  }

  Result<> answer(Frame& frame) {
    if (frame.kind != kFork || frame.fds.size() != 1)
      return Error{ErrorKind::kPlugin, "unknown message " + std::to_string(frame.kind), "mortise-worker", ""};
    ForkedMessage forked;
    TRY(decode(frame.body, forked));
    const pid_t keeper = ::getpid();
    const pid_t pid = ::fork();
    if (pid < 0) return system_error("fork");
    if (pid == 0) be_worker(std::move(frame.fds.front()), keeper);
    ::setpgid(pid, pid);
    workers_[pid] = forked.worker;
    const Fd handle(static_cast<int>(::syscall(SYS_pidfd_open, pid, 0)));
    if (!handle.valid()) return system_error("pidfd_open");
    const int number = handle.get();
    return channel_.send(kForked, encode(forked), {&number, 1});
  }

  [[noreturn]] void be_worker(Fd socket, pid_t keeper) {
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (::getppid() != keeper) ::_exit(0);
    ::setpgid(0, 0);
    ::prctl(PR_SET_CHILD_SUBREAPER, 0, 0, 0, 0);
    signals_.reset();
    channel_ = Channel();
    sigset_t none;
    sigemptyset(&none);
    ::sigprocmask(SIG_SETMASK, &none, nullptr);
    Channel channel(std::move(socket));
    protect_keeper(load_.limits, keeper);
    serve(channel, load_);
    // No exit handlers: they belong to the keeper, and code of the pack may still run.
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

  // What a dead worker had started is ours now, if it left the worker's group (a reward's own interpreter does). The
  // ends of these come in as any child's.
  void end_strays() const {
    std::ifstream children("/proc/thread-self/children");
    pid_t pid = 0;
    while (children >> pid) {
      if (workers_.count(pid) != 0) continue;
      ::kill(-pid, SIGKILL);
      ::kill(pid, SIGKILL);
    }
  }

  Channel channel_;
  Fd signals_;
  LoadMessage load_;
  std::map<pid_t, int64_t> workers_;
};

}  // namespace

Result<> run_zygote(Fd socket) { return Zygote(std::move(socket)).run(); }

}  // namespace mortise
