#include "sandbox.h"

#include <fcntl.h>
#include <poll.h>
#include <spawn.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <climits>
#include <cmath>
#include <csignal>
#include <cstdlib>
#include <cstring>

#include <mortise/cpp/plugin.hpp>

#include "../shared/deadline.h"

namespace mortise {
namespace {

constexpr int kFirstFree = 16;  // our ends lie above those that the child has
constexpr int kProgram = 3, kFilter = 4;
constexpr std::size_t kMaxErrors = 2000;

[[noreturn]] void out_of(const char* what) {
  fail(MORTISE_RESOURCE_EXHAUSTED, std::string("the sandbox got no ") + what + ": " + std::strerror(errno));
}

class Fd {
 public:
  Fd() = default;
  explicit Fd(int fd) : fd_(fd) {
    if (fd_ < 0 || fd_ >= kFirstFree) return;
    const int moved = fcntl(fd_, F_DUPFD_CLOEXEC, kFirstFree);
    close(fd_);
    fd_ = moved;
  }
  Fd(Fd&& other) noexcept : fd_(other.fd_) { other.fd_ = -1; }
  Fd& operator=(Fd&& other) noexcept {
    std::swap(fd_, other.fd_);
    return *this;
  }
  ~Fd() { reset(); }
  void reset() {
    if (fd_ >= 0) close(fd_);
    fd_ = -1;
  }
  [[nodiscard]] int get() const { return fd_; }

 private:
  int fd_ = -1;
};

Fd memory_file(const std::string& content) {
  Fd file(memfd_create("mortise", MFD_CLOEXEC));
  if (file.get() < 0) out_of("memory file");
  for (std::size_t done = 0; done < content.size();) {
    const ssize_t n = write(file.get(), content.data() + done, content.size() - done);
    if (n <= 0) out_of("room in a memory file");
    done += std::size_t(n);
  }
  lseek(file.get(), 0, SEEK_SET);
  return file;
}

struct Pipe {
  Fd read_end, write_end;
  Pipe() {
    int ends[2];
    if (pipe2(ends, O_CLOEXEC) != 0) out_of("pipe");
    read_end = Fd(ends[0]);
    write_end = Fd(ends[1]);
    fcntl(read_end.get(), F_SETFL, O_NONBLOCK);
  }
};

// A child in a process group of its own, ended with its owner.
class Child {
 public:
  Child(const std::vector<std::string>& words, const std::vector<std::pair<int, int>>& files) {
    posix_spawn_file_actions_t actions;
    posix_spawnattr_t attributes;
    posix_spawn_file_actions_init(&actions);
    int last = 0;
    for (const auto& [from, to] : files) {
      posix_spawn_file_actions_adddup2(&actions, from, to);
      last = std::max(last, to);
    }
    posix_spawn_file_actions_addclosefrom_np(&actions, last + 1);
    posix_spawnattr_init(&attributes);
    sigset_t all, none;
    sigfillset(&all);
    sigemptyset(&none);
    posix_spawnattr_setsigdefault(&attributes, &all);
    posix_spawnattr_setsigmask(&attributes, &none);
    posix_spawnattr_setpgroup(&attributes, 0);
    posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETSIGDEF | POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETPGROUP);
    std::vector<char*> arguments;
    for (const std::string& word : words) arguments.push_back(const_cast<char*>(word.c_str()));
    arguments.push_back(nullptr);
    const int code = posix_spawn(&pid_, arguments[0], &actions, &attributes, arguments.data(), environ);
    posix_spawn_file_actions_destroy(&actions);
    posix_spawnattr_destroy(&attributes);
    if (code == 0) return;
    pid_ = -1;
    fail(MORTISE_FAILED_PRECONDITION,
         "'" + words[0] + "' cannot be started: " + std::strerror(code) +
             (code == EPERM ? "; add allow = [\"programs\"] to the [[reward]] table" : ""));
  }
  Child(const Child&) = delete;
  Child& operator=(const Child&) = delete;
  ~Child() { end(); }

  [[nodiscard]] bool has_exited() const {
    siginfo_t ended{};
    return waitid(P_PID, id_t(pid_), &ended, WEXITED | WNOHANG | WNOWAIT) != 0 || ended.si_pid != 0;
  }
  // Kills it, with all in the sandbox, unless it has ended; its exit code, as a shell gives it.
  int end() {
    if (pid_ < 0) return -1;
    kill(-pid_, SIGKILL);  // a zombie keeps the number
    int status = 0;
    const bool known = waitpid(pid_, &status, 0) == pid_;
    pid_ = -1;
    if (!known) return -1;
    return WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
  }

 private:
  pid_t pid_ = -1;
};

// What is there to read; false at the end. Not for ever: who writes without end must not keep us from the clock.
bool drain(const Fd& from, std::string& into) {
  char block[16384];
  for (int turn = 0; turn < 16; ++turn) {
    const ssize_t n = read(from.get(), block, sizeof block);
    if (n > 0) {
      into.append(block, std::size_t(n));
    } else {
      return n < 0 && (errno == EAGAIN || errno == EINTR);
    }
    if (n < ssize_t(sizeof block)) break;
  }
  return true;
}

// Reads both pipes until they end, the time is over or there is too much.
SandboxRun::End read_all(const Fd& output, const Fd& errors, std::int64_t deadline_ns, std::int64_t most,
                         SandboxRun& run) {
  pollfd entries[2] = {{output.get(), POLLIN, 0}, {errors.get(), POLLIN, 0}};
  while (entries[0].fd >= 0 || entries[1].fd >= 0) {
    const std::int64_t left_ns = deadline_ns - monotonic_ns();
    if (left_ns <= 0) return SandboxRun::kTimedOut;
    poll(entries, 2, int(std::min<std::int64_t>(left_ns / 1'000'000 + 1, 1000)));
    if (entries[0].revents != 0 && !drain(output, run.output)) entries[0].fd = -1;
    if (entries[1].revents != 0 && !drain(errors, run.errors)) entries[1].fd = -1;
    if (run.errors.size() > 2 * kMaxErrors) run.errors.erase(0, run.errors.size() - kMaxErrors);
    if (std::int64_t(run.output.size()) > most) return SandboxRun::kTooMuchOutput;
  }
  return SandboxRun::kExited;
}

std::string find_program(const char* name) {
  const char* const path = std::getenv("PATH");
  std::string folders = path == nullptr ? "/usr/bin:/bin" : path;
  folders += ':';
  for (std::size_t at = 0, end; (end = folders.find(':', at)) != std::string::npos; at = end + 1) {
    const std::string place = folders.substr(at, end - at) + "/" + name;
    if (place[0] == '/' && access(place.c_str(), X_OK) == 0) return place;
  }
  return "";
}

}  // namespace

Sandbox::Sandbox(std::vector<std::string> readable)
    : bubblewrap_(find_program("bwrap")), readable_(std::move(readable)) {
  if (bubblewrap_.empty()) {
    fail(MORTISE_FAILED_PRECONDITION,
         "bubblewrap (bwrap) is not in PATH, and programs are not run without a sandbox; install the package "
         "bubblewrap");
  }
}

std::vector<std::string> Sandbox::words(const std::vector<std::string>& command, const SandboxLimits& limits) const {
  std::vector<std::string> out = {bubblewrap_, "--unshare-all", "--die-with-parent", "--new-session", "--clearenv"};
  const auto add = [&](std::initializer_list<std::string> more) { out.insert(out.end(), more); };
  add({"--setenv", "PATH", "/usr/local/bin:/usr/bin:/bin", "--setenv", "LANG", "C.UTF-8", "--setenv", "HOME", "/tmp"});
  add({"--setenv", "PYTHONHASHSEED", "0", "--setenv", "PYTHONDONTWRITEBYTECODE", "1"});
  add({"--ro-bind", "/usr", "/usr"});
  for (const char* folder : {"/bin", "/sbin", "/lib", "/lib32", "/lib64"}) {
    char target[PATH_MAX];
    const ssize_t size = readlink(folder, target, sizeof target);
    if (size > 0) {
      add({"--symlink", std::string(target, std::size_t(size)), folder});
    } else {
      add({"--ro-bind-try", folder, folder});
    }
  }
  for (const char* file : {"/etc/alternatives", "/etc/ld.so.cache"}) add({"--ro-bind-try", file, file});
  for (const char* device : {"/dev/null", "/dev/zero", "/dev/urandom"}) add({"--dev-bind-try", device, device});
  for (const std::string& folder : readable_) add({"--ro-bind", folder, folder});
  add({"--size", std::to_string(limits.file_bytes), "--tmpfs", "/tmp", "--chdir", "/tmp"});
  add({"--ro-bind-data", std::to_string(kProgram), "/program", "--remount-ro", "/", "--cap-drop", "ALL"});
  if (!system_call_filter(limits.processes).empty()) add({"--seccomp", std::to_string(kFilter)});
  // The shell's limits hold for what it becomes.
  const auto kib = [](std::int64_t bytes) { return std::to_string(std::max<std::int64_t>(bytes >> 10, 1)); };
  const std::string set = "ulimit -c 0 && ulimit -n 64 && ulimit -t " +
                          std::to_string(std::int64_t(std::ceil(limits.seconds)) + 1) + " && ulimit -v " +
                          kib(limits.memory_bytes) + " && ulimit -f " +
                          std::to_string(std::max<std::int64_t>(limits.file_bytes >> 9, 1)) + " && exec \"$@\"";
  add({"--", "/bin/sh", "-c", set, "sh"});
  out.insert(out.end(), command.begin(), command.end());
  return out;
}

SandboxRun Sandbox::run(const std::vector<std::string>& command, const std::string& program, const std::string& input,
                        const SandboxLimits& limits) const {
  const std::int64_t deadline_ns = monotonic_ns() + std::int64_t(limits.seconds * 1e9);
  const Fd program_file = memory_file(program), input_file = memory_file(input),
           filter = memory_file(system_call_filter(limits.processes));
  Pipe output, errors;
  Child child(words(command, limits), {{input_file.get(), 0},
                                       {output.write_end.get(), 1},
                                       {errors.write_end.get(), 2},
                                       {program_file.get(), kProgram},
                                       {filter.get(), kFilter}});
  output.write_end.reset();
  errors.write_end.reset();
  SandboxRun out;
  out.end = read_all(output.read_end, errors.read_end, deadline_ns, limits.output_bytes, out);
  while (out.end == SandboxRun::kExited && !child.has_exited()) {
    if (monotonic_ns() >= deadline_ns) out.end = SandboxRun::kTimedOut;
    poll(nullptr, 0, 1);
  }
  out.code = child.end();
  if (out.errors.size() > kMaxErrors) out.errors.erase(0, out.errors.size() - kMaxErrors);
  return out;
}

}  // namespace mortise
