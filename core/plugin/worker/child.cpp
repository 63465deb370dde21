// Spawns a program, and ends it when its time is over.
#include "plugin/worker/child.h"

#include <fcntl.h>
#include <poll.h>
#include <spawn.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>

#include "plugin/worker/environment.h"

namespace mortise {
namespace {

std::vector<char*> pointers(std::vector<std::string>& words) {
  std::vector<char*> out;
  for (std::string& word : words) out.push_back(word.data());
  out.push_back(nullptr);
  return out;
}

// Waits until the process has ended; false where the time is over first.
bool wait_until_ended(pid_t pid, std::chrono::milliseconds timeout, const std::function<void()>& while_it_runs) {
  constexpr std::chrono::milliseconds kTick{200};
  const int fd = static_cast<int>(::syscall(SYS_pidfd_open, pid, 0));
  if (fd < 0) return true;  // an old kernel: waitpid waits without a limit
  pollfd ended{fd, POLLIN, 0};
  int ready = 0;
  while (ready == 0 && timeout.count() > 0) {
    const auto wait = while_it_runs ? std::min(timeout, kTick) : timeout;
    do {
      ready = ::poll(&ended, 1, static_cast<int>(wait.count()));
    } while (ready < 0 && errno == EINTR);
    timeout -= wait;
    if (while_it_runs) while_it_runs();
  }
  ::close(fd);
  return ready != 0;
}

}  // namespace

Result<ChildOutcome> run_child(const std::vector<std::string>& words, const Path& folder, const Path& log,
                               std::chrono::milliseconds timeout, const std::function<void()>& while_it_runs) {
  std::vector<std::string> arguments = words;
  std::vector<std::string> environment = worker_environment(environ, {});
  posix_spawn_file_actions_t actions;
  posix_spawnattr_t attributes;
  ::posix_spawn_file_actions_init(&actions);
  ::posix_spawnattr_init(&attributes);
  ::posix_spawn_file_actions_addopen(&actions, 0, "/dev/null", O_RDONLY, 0);
  ::posix_spawn_file_actions_addopen(&actions, 1, log.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0600);
  ::posix_spawn_file_actions_adddup2(&actions, 1, 2);
  ::posix_spawn_file_actions_addchdir_np(&actions, folder.c_str());
  ::posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETPGROUP);
  pid_t pid = -1;
  const int failed = ::posix_spawn(&pid, words[0].c_str(), &actions, &attributes, pointers(arguments).data(),
                                   pointers(environment).data());
  ::posix_spawn_file_actions_destroy(&actions);
  ::posix_spawnattr_destroy(&attributes);
  if (failed != 0) return disk_error(failed, "start", words[0]);
  ChildOutcome outcome;
  outcome.timed_out = !wait_until_ended(pid, timeout, while_it_runs);
  if (outcome.timed_out) ::kill(-pid, SIGKILL);
  // What it left behind is ended before the number of its group is free again: an ended child that was not waited for
  // keeps the number.
  siginfo_t ended{};
  while (::waitid(P_PID, static_cast<id_t>(pid), &ended, WEXITED | WNOWAIT) < 0 && errno == EINTR) {
  }
  ::kill(-pid, SIGKILL);
  int status = 0;
  while (::waitpid(pid, &status, 0) < 0 && errno == EINTR) {
  }
  outcome.code = WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
  return outcome;
}

}  // namespace mortise
