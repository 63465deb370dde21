// Forks the ranks, passes signals on, and ends the survivors of a failure.
#include "dist/launch/local_group.h"

#include <fcntl.h>
#include <fmt/core.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <optional>
#include <string_view>

#include "dist/launch/local_address.h"
#include "foundation/base/log.h"

extern char** environ;  // NOLINT(readability-redundant-declaration): unistd.h declares it only for GNU

namespace mortise {

namespace {

using Clock = std::chrono::steady_clock;

constexpr int kStoppedBySignal = static_cast<int>(ErrorKind::kSignal);

Error system_error(const std::string& what) {
  return {ErrorKind::kInternal, fmt::format("{}: {}", what, std::strerror(errno)), "mortise launch", {}};
}

struct Rank {
  pid_t pid = -1;
  bool runs = false;
};

struct Failure {
  int rank;
  int status;  // as of waitpid
  [[nodiscard]] int code() const {
    return WIFEXITED(status) ? WEXITSTATUS(status) : static_cast<int>(ErrorKind::kRankFailure);
  }
};

// This process's environment, with the variables of one rank. Another launcher's would contradict them.
std::vector<std::string> environment_of(int rank, int port, const LocalGroupOptions& options) {
  std::vector<std::string> set{fmt::format("RANK={}", rank),
                               fmt::format("LOCAL_RANK={}", rank),
                               fmt::format("WORLD_SIZE={}", options.num_ranks),
                               fmt::format("LOCAL_WORLD_SIZE={}", options.num_ranks),
                               "MASTER_ADDR=127.0.0.1",
                               fmt::format("MASTER_PORT={}", port)};
  if (options.threads_per_rank > 0) set.push_back(fmt::format("OMP_NUM_THREADS={}", options.threads_per_rank));
  std::vector<std::string> all;
  for (char** one = environ; *one != nullptr; ++one) {
    const std::string_view entry = *one;
    const std::string_view name = entry.substr(0, entry.find('=') + 1);
    const bool replaced =
        std::any_of(set.begin(), set.end(), [&](const std::string& s) { return s.starts_with(name); });
    if (!replaced && !entry.starts_with("TORCHELASTIC_")) all.emplace_back(entry);
  }
  all.insert(all.end(), set.begin(), set.end());
  return all;
}

std::vector<char*> pointers_to(std::vector<std::string>& texts) {
  std::vector<char*> pointers;
  for (std::string& text : texts) pointers.push_back(text.data());
  pointers.push_back(nullptr);
  return pointers;
}

class LocalGroup {
 public:
  explicit LocalGroup(const LocalGroupOptions& options) : options_(options) {}

  Result<> start(int port);
  Result<GroupEnd> wait();

 private:
  Result<> start_rank(int rank, int port);
  [[noreturn]] static void become_rank(char* const* words, char* const* variables, int log, pid_t parent);
  void reap();
  void signal_all(int signal) const;
  void on_signal(int signal);
  void end_survivors();
  [[nodiscard]] bool any_runs() const {
    return std::any_of(ranks_.begin(), ranks_.end(), [](const Rank& rank) { return rank.runs; });
  }
  [[nodiscard]] GroupEnd ending() const;

  const LocalGroupOptions& options_;
  std::vector<Rank> ranks_;
  std::vector<Failure> failures_;  // in order of time, before this process ended any rank
  bool stop_asked_ = false;        // by the user
  int sent_ = 0;                   // to the survivors of a failure
  Clock::time_point failed_at_;
};

sigset_t handled_signals() {
  sigset_t signals;
  sigemptyset(&signals);
  for (const int signal : {SIGCHLD, SIGINT, SIGTERM, SIGHUP}) sigaddset(&signals, signal);
  return signals;
}

Result<> LocalGroup::start(int port) {
  const sigset_t signals = handled_signals();
  sigprocmask(SIG_BLOCK, &signals, nullptr);
  for (int rank = 0; rank < options_.num_ranks; ++rank) {
    const Result<> started = start_rank(rank, port);
    if (started.ok()) continue;
    signal_all(SIGKILL);
    return started.error();
  }
  return {};
}

// Between fork and exec: only calls that are safe in a process with threads.
void LocalGroup::become_rank(char* const* words, char* const* variables, int log, pid_t parent) {
  setpgid(0, 0);  // the terminal's Ctrl-C reaches the launcher alone, which passes it on once
  prctl(PR_SET_PDEATHSIG, SIGTERM);
  if (getppid() != parent) _exit(kStoppedBySignal);
  const int input = open("/dev/null", O_RDONLY);  // NOLINT(android-cloexec-open): it becomes standard input
  if (input >= 0) dup2(input, STDIN_FILENO);
  if (log >= 0) {
    dup2(log, STDOUT_FILENO);
    dup2(log, STDERR_FILENO);
  }
  sigset_t none;
  sigemptyset(&none);
  sigprocmask(SIG_SETMASK, &none, nullptr);
  execve(words[0], words, variables);
  _exit(127);
}

Result<> LocalGroup::start_rank(int rank, int port) {
  std::vector<std::string> command = options_.command;
  std::vector<std::string> variables = environment_of(rank, port, options_);
  const std::vector<char*> words = pointers_to(command);
  const std::vector<char*> environment = pointers_to(variables);
  int log = -1;
  if (rank > 0) {
    const Path file = options_.log_folder / fmt::format("rank_{}.log", rank);
    log = open(file.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
    if (log < 0) return disk_error(errno, "open", file);
  }
  const pid_t parent = getpid();
  const pid_t pid = fork();
  if (pid == 0) become_rank(words.data(), environment.data(), log, parent);
  if (log >= 0) close(log);
  if (pid < 0) return system_error(fmt::format("rank {} could not be started", rank));
  ranks_.push_back({pid, true});
  return {};
}

void LocalGroup::signal_all(int signal) const {
  for (const Rank& rank : ranks_)
    if (rank.runs) kill(rank.pid, signal);
}

void LocalGroup::reap() {
  for (size_t i = 0; i < ranks_.size(); ++i) {
    int status = 0;
    if (!ranks_[i].runs || waitpid(ranks_[i].pid, &status, WNOHANG) != ranks_[i].pid) continue;
    ranks_[i].runs = false;
    if (status == 0 || sent_ != 0) continue;  // what this process ended did not fail
    if (failures_.empty()) failed_at_ = Clock::now();
    failures_.push_back({static_cast<int>(i), status});
    if (any_runs() && failures_.size() == 1 && !stop_asked_)
      log_warn(fmt::format("rank {} ended with {}; the other ranks will be stopped", i,
                           WIFSIGNALED(status) ? fmt::format("signal {}", WTERMSIG(status))
                                               : fmt::format("exit code {}", WEXITSTATUS(status))));
  }
}

void LocalGroup::on_signal(int signal) {
  if (signal == SIGINT || signal == SIGTERM || signal == SIGHUP) {
    stop_asked_ = true;
    signal_all(signal == SIGHUP ? SIGTERM : signal);
  }
}

void LocalGroup::end_survivors() {
  if (failures_.empty()) return;
  const auto since = Clock::now() - failed_at_;
  if (sent_ == 0 && since > options_.patience) {
    sent_ = SIGTERM;
    signal_all(SIGTERM);
    signal_all(SIGCONT);  // a stopped process takes no other signal
  }
  if (sent_ == SIGTERM && since > options_.patience + options_.kill_grace) {
    sent_ = SIGKILL;
    signal_all(SIGKILL);
  }
}

// A rank that ended because of another one says so with its exit code: the cause is the first of the others.
GroupEnd LocalGroup::ending() const {
  if (failures_.empty()) return {};
  const auto cause = std::find_if(failures_.begin(), failures_.end(), [](const Failure& failure) {
    return WIFSIGNALED(failure.status) || failure.code() != static_cast<int>(ErrorKind::kRankFailure);
  });
  const Failure& first = cause == failures_.end() ? failures_.front() : *cause;
  const std::string how =
      WIFSIGNALED(first.status)
          ? fmt::format("was killed by signal {} ({})", WTERMSIG(first.status), strsignal(WTERMSIG(first.status)))
          : fmt::format("ended with exit code {}", first.code());
  return {first.code(), first.rank, fmt::format("rank {} {}", first.rank, how)};
}

Result<GroupEnd> LocalGroup::wait() {
  const sigset_t signals = handled_signals();
  while (true) {
    reap();
    if (!any_runs()) return ending();
    end_survivors();
    const timespec limit{0, 200'000'000};
    siginfo_t info;
    const int signal = sigtimedwait(&signals, &info, &limit);
    if (signal > 0) on_signal(signal);
  }
}

}  // namespace

Result<GroupEnd> run_local_group(const LocalGroupOptions& options) {
  const FreePort own = options.port == 0 ? TRY(free_port()) : FreePort{options.port, {}};
  LocalGroup group(options);
  TRY(group.start(own.number));
  return group.wait();
}

}  // namespace mortise
