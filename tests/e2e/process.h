// Runs a program next to the test, sends it signals, and watches a folder for new names.
#pragma once

#include <fcntl.h>
#include <poll.h>
#include <sys/inotify.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <csignal>
#include <deque>
#include <filesystem>
#include <fstream>
#include <optional>
#include <string>
#include <vector>

#include "foundation/base/clock.h"
#include "program.h"

namespace mortise::test {

class Process {
 public:
  // Standard output and error go to `log`. Word 0 is the program's path.
  Process(std::vector<std::string> words, const Path& dir, const Path& log) {
    std::array<int, 2> ends{};
    if (pipe2(ends.data(), O_CLOEXEC) != 0) ADD_FAILURE() << "no pipe";
    lives_ = ends[0];
    pid_ = fork();
    if (pid_ != 0) {
      close(ends[1]);
      return;
    }
    fcntl(ends[1], F_SETFD, 0);
    const int out = open(log.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0644);
    std::vector<char*> args;
    for (std::string& word : words) args.push_back(word.data());
    args.push_back(nullptr);
    if (out >= 0 && dup2(out, 1) == 1 && dup2(out, 2) == 2 && chdir(dir.c_str()) == 0) execv(args[0], args.data());
    _exit(127);
  }
  Process(const Process&) = delete;
  Process& operator=(const Process&) = delete;
  ~Process() {
    if (!code_) kill_and_wait();
    close(lives_);
  }

  void signal(int number) const {
    if (!code_) kill(pid_, number);
  }
  // The exit code, negative for the signal that ended it; nothing while it runs. Once it has ended, what it started must
  // end too, which this waits for.
  std::optional<int> poll() { return code_ ? code_ : reap(WNOHANG); }
  int wait() { return code_ ? *code_ : reap(0).value_or(-1); }
  int kill_and_wait() {
    signal(SIGKILL);
    return wait();
  }
  [[nodiscard]] pid_t pid() const { return pid_; }

 private:
  std::optional<int> reap(int flags) {
    int status = 0;
    if (waitpid(pid_, &status, flags) != pid_) return std::nullopt;
    code_ = WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
    // After a SIGKILL an engine of the server lives a moment longer than the process that asked for it (support/engine).
    pollfd ended{lives_, POLLIN, 0};
    int count = 0;
    do count = ::poll(&ended, 1, /*timeout_ms=*/60'000);
    while (count < 0 && errno == EINTR);
    if (count == 0) ADD_FAILURE() << "process " << pid_ << " has ended, but not what it started";
    return code_;
  }
  pid_t pid_ = -1;
  int lives_ = -1;  // the read end of a pipe; the process and the engine have the other one
  std::optional<int> code_;
};

// The processes that this one has started, in the order of their numbers.
inline std::vector<pid_t> children_of(pid_t parent) {
  std::vector<pid_t> children;
  const Path tasks = Path("/proc") / std::to_string(parent) / "task";
  std::error_code gone;
  for (const auto& task : std::filesystem::directory_iterator(tasks, gone)) {
    std::ifstream file(task.path() / "children");
    for (pid_t child = 0; file >> child;) children.push_back(child);
  }
  std::sort(children.begin(), children.end());
  return children;
}

// The names that are made in a folder or renamed to something in it, as they come; or what other events ask for.
class FolderWatch {
 public:
  explicit FolderWatch(const Path& dir, uint32_t events = IN_CREATE | IN_MOVED_TO) : fd_(inotify_init1(IN_CLOEXEC)) {
    if (inotify_add_watch(fd_, dir.c_str(), events) < 0) ADD_FAILURE() << "cannot watch " << dir;
  }
  FolderWatch(const FolderWatch&) = delete;
  FolderWatch& operator=(const FolderWatch&) = delete;
  ~FolderWatch() { close(fd_); }

  // Waits for the `count`-th name that begins with `prefix`; false where the process ends before it.
  bool wait_for(const std::string& prefix, int64_t count, Process& process) {
    while (true) {
      while (!names_.empty()) {
        const std::string name = names_.front();
        names_.pop_front();
        if (name.starts_with(prefix) && --count == 0) return true;
      }
      if (process.poll()) return false;
      pollfd ready{fd_, POLLIN, 0};
      if (::poll(&ready, 1, /*timeout_ms=*/20) > 0) read_names();
    }
  }

 private:
  void read_names() {
    alignas(inotify_event) std::array<char, 4096> buffer{};
    const ssize_t size = read(fd_, buffer.data(), buffer.size());
    for (ssize_t at = 0; at < size;) {
      const auto* event = reinterpret_cast<const inotify_event*>(buffer.data() + at);
      if (event->len > 0) names_.emplace_back(event->name);
      at += static_cast<ssize_t>(sizeof(inotify_event)) + event->len;
    }
  }
  int fd_;
  std::deque<std::string> names_;  // read, not yet looked at
};

}  // namespace mortise::test
