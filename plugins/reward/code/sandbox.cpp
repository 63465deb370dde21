// Builds bubblewrap's command line, runs it, and watches its time, output and threads.
#include "sandbox.h"

#include <fcntl.h>
#include <poll.h>
#include <spawn.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/utsname.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <climits>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>

#include <mortise/cpp/plugin.hpp>

#include "../../shared/deadline.h"
#include "../../shared/spawn_attributes.h"

namespace mortise {
namespace {

constexpr int kFirstFree = 16;  // our ends have higher numbers than those of the child
constexpr int kProgram = 3, kFilter = 4, kHarness = 8;
constexpr std::size_t kMaxErrors = 2000;
constexpr std::int64_t kStartNs = 10'000'000'000;  // longest time until the mark of the harness
constexpr int kSliceMs = 5;                        // between two counts of the threads
constexpr int kMaxTries = 6, kMaxKills = 2;
constexpr int kFirstPauseMs = 50;  // before the second try; doubles

[[noreturn]] void out_of(const char* what) {
  fail(MORTISE_RESOURCE_EXHAUSTED, std::string("the sandbox got no ") + what + ": " + std::strerror(errno));
}

class Fd {
 public:
  Fd() = default;
  explicit Fd(int fd) : fd_(fd) {
    if (fd_ < 0 || fd_ >= kFirstFree) return;
    const int moved = fcntl(fd_, F_DUPFD_CLOEXEC, kFirstFree);
    const int code = errno;
    close(fd_);
    fd_ = moved;
    errno = code;  // why it could not be moved
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
    if (read_end.get() < 0 || write_end.get() < 0) out_of("pipe");
    fcntl(read_end.get(), F_SETFL, O_NONBLOCK);
  }
};

// A child in its own process group, which ends with its owner.
class Child {
 public:
  Child(const std::vector<std::string>& words, const std::vector<std::pair<int, int>>& files) {
    posix_spawn_file_actions_t actions;
    const SpawnAttributes attributes;
    posix_spawn_file_actions_init(&actions);
    int last = 0;
    for (const auto& [from, to] : files) {
      posix_spawn_file_actions_adddup2(&actions, from, to);
      last = std::max(last, to);
    }
    posix_spawn_file_actions_addclosefrom_np(&actions, last + 1);
    std::vector<char*> arguments;
    for (const std::string& word : words) arguments.push_back(const_cast<char*>(word.c_str()));
    arguments.push_back(nullptr);
    char path[] = "PATH=/usr/local/bin:/usr/bin:/bin";
    char* const environment[] = {path, nullptr};  // what we were given may hold secrets
    const int code = posix_spawn(&pid_, arguments[0], &actions, attributes.get(), arguments.data(), environment);
    posix_spawn_file_actions_destroy(&actions);
    if (code == 0) return;
    pid_ = -1;
    fail(code == EAGAIN || code == ENOMEM ? MORTISE_RESOURCE_EXHAUSTED : MORTISE_FAILED_PRECONDITION,
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
  [[nodiscard]] pid_t pid() const { return pid_; }
  // Kills it and all in the sandbox, unless it has ended. Returns its exit code, as a shell gives it.
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

// Reads what is there; false at the end. Not forever: a program that writes without end must not keep us from the
// clock.
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

pid_t only_child(pid_t parent) {
  const std::string name = std::to_string(parent);
  std::ifstream file("/proc/" + name + "/task/" + name + "/children");
  pid_t child = -1;
  file >> child;
  return child;
}

// bwrap has a child, the first process of the sandbox, and the program is that one's child. -1: not known.
pid_t program_of(pid_t bubblewrap) {
  const pid_t first = only_child(bubblewrap);
  return first > 0 ? only_child(first) : -1;
}

// 0: not known.
std::int64_t count_threads(pid_t program) {
  std::ifstream file("/proc/" + std::to_string(program) + "/status");
  for (std::string line; std::getline(file, line);)
    if (line.rfind("Threads:", 0) == 0) return std::strtoll(line.c_str() + 8, nullptr, 10);
  return 0;
}

// One run, from the start of bwrap to its end.
class Watch {
 public:
  Watch(const Child& child, const SandboxLimits& limits, SandboxRun& run)
      : child_(child), limits_(limits), run_(run), deadline_ns_(monotonic_ns() + kStartNs) {}

  SandboxRun::End until_end(const Fd& output, const Fd& errors, const Fd& start, const Fd& result) {
    const Fd* pipes[] = {&output, &errors, &start, &result};
    std::string mark;
    std::string* texts[] = {&run_.output, &run_.errors, &mark, &run_.result};
    pollfd entries[4];
    for (int i = 0; i < 4; ++i) entries[i] = {pipes[i]->get(), POLLIN, 0};
    const auto all_closed = [&] {
      return std::all_of(std::begin(entries), std::end(entries), [](const pollfd& e) { return e.fd < 0; });
    };
    while (!all_closed() || !child_.has_exited()) {
      const std::int64_t left_ns = deadline_ns_ - monotonic_ns();
      if (left_ns <= 0) return started_ ? SandboxRun::kTimedOut : SandboxRun::kNotStarted;
      const int longest = all_closed() ? 1 : kSliceMs;
      poll(entries, 4, int(std::min<std::int64_t>(left_ns / 1'000'000 + 1, longest)));
      for (int i = 0; i < 4; ++i)
        if (entries[i].fd >= 0 && entries[i].revents != 0 && !drain(*pipes[i], *texts[i])) entries[i].fd = -1;
      if (run_.errors.size() > 2 * kMaxErrors) run_.errors.erase(0, run_.errors.size() - kMaxErrors);
      if (std::int64_t(std::max(run_.output.size(), run_.result.size())) > limits_.output_bytes)
        return SandboxRun::kTooMuchOutput;
      if (!started_ && !mark.empty()) {
        started_ = true;
        deadline_ns_ = monotonic_ns() + std::int64_t(limits_.seconds * 1e9);
      }
      if (started_ && limits_.threads > 0 && has_too_many_threads()) return SandboxRun::kTooManyThreads;
    }
    return started_ ? SandboxRun::kExited : SandboxRun::kNotStarted;
  }

 private:
  bool has_too_many_threads() {
    const std::int64_t now = monotonic_ns();
    if (now < next_count_ns_) return false;
    next_count_ns_ = now + kSliceMs * 1'000'000;
    if (program_ <= 0) program_ = program_of(child_.pid());
    return program_ > 0 && count_threads(program_) > limits_.threads;
  }

  const Child& child_;
  const SandboxLimits& limits_;
  SandboxRun& run_;
  std::int64_t deadline_ns_;
  std::int64_t next_count_ns_ = 0;
  pid_t program_ = -1;
  bool started_ = false;
};

// Does the kernel count a user's processes in each user namespace apart? Then a limit on them holds for one sandbox.
bool counts_by_namespace() {
  utsname name{};
  int major = 0, minor = 0;
  if (uname(&name) != 0 || std::sscanf(name.release, "%d.%d", &major, &minor) != 2) return false;
  return major > 5 || (major == 5 && minor >= 14);
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
    : bubblewrap_(find_program("bwrap")), readable_(std::move(readable)), limit_threads_(counts_by_namespace()) {
  if (bubblewrap_.empty()) {
    fail(MORTISE_FAILED_PRECONDITION,
         "bubblewrap (bwrap) is not in PATH, and programs are not run without a sandbox; install the package "
         "bubblewrap");
  }
  sandbox::FilterProgram filter = system_call_filter();
  if (filter.bytes.empty()) {
    fail(MORTISE_FAILED_PRECONDITION, "libseccomp cannot make the filter of system calls (" + filter.fault +
                                          "), and programs are not run without it");
  }
  filter_ = std::move(filter.bytes);
}

std::vector<std::string> Sandbox::words(const std::string& interpreter, const SandboxLimits& limits) const {
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
  add({"--ro-bind-data", std::to_string(kProgram), "/program", "--ro-bind-data", std::to_string(kHarness), "/harness"});
  add({"--remount-ro", "/", "--cap-drop", "ALL"});
  add({"--seccomp", std::to_string(kFilter)});
  // The shell's limits hold for what it becomes. None on CPU time: the kernel enforces that one with SIGKILL.
  const auto kib = [](std::int64_t bytes) { return std::to_string(std::max<std::int64_t>(bytes >> 10, 1)); };
  std::string set = "ulimit -c 0 && ulimit -n 64 && ulimit -v " + kib(limits.memory_bytes) + " && ulimit -f " +
                    std::to_string(std::max<std::int64_t>(limits.file_bytes >> 9, 1));
  if (limit_threads_ && limits.threads > 0) {
    // With the first process of the sandbox. dash calls the option -p, bash -u.
    const std::string count = std::to_string(limits.threads + 1);
    set += " && { ulimit -p " + count + " 2>/dev/null || ulimit -u " + count + "; }";
  }
  add({"--", "/bin/sh", "-c", set + " && exec \"$@\"", "sh", interpreter, "/harness"});
  return out;
}

SandboxRun Sandbox::try_run(const std::string& interpreter, const SandboxJob& job, const SandboxLimits& limits) const {
  const Fd program = memory_file(job.program), harness = memory_file(job.harness), input = memory_file(job.input),
           test = memory_file(job.test), filter = memory_file(filter_);
  Pipe output, errors, start, result;
  Child child(words(interpreter, limits), {{input.get(), 0},
                                           {output.write_end.get(), 1},
                                           {errors.write_end.get(), 2},
                                           {program.get(), kProgram},
                                           {filter.get(), kFilter},
                                           {start.write_end.get(), kStartFd},
                                           {result.write_end.get(), kResultFd},
                                           {test.get(), kTestFd},
                                           {harness.get(), kHarness}});
  for (Pipe* pipe : {&output, &errors, &start, &result}) pipe->write_end.reset();
  SandboxRun out;
  out.end = Watch(child, limits, out).until_end(output.read_end, errors.read_end, start.read_end, result.read_end);
  const bool has_exited = child.has_exited();
  out.code = child.end();
  if (out.end == SandboxRun::kExited && out.code == 128 + SIGKILL) out.end = SandboxRun::kKilled;
  if (out.end == SandboxRun::kNotStarted) {
    out.errors = (has_exited ? "exit code " + std::to_string(out.code) : "not started after 10 s") +
                 (out.errors.empty() ? "" : ": " + out.errors);
  }
  if (out.errors.size() > kMaxErrors) out.errors.erase(0, out.errors.size() - kMaxErrors);
  return out;
}

SandboxRun Sandbox::run(const std::string& interpreter, const SandboxJob& job, const SandboxLimits& limits) const {
  std::string why;
  int num_kills = 0;
  for (int tries = 0; tries < kMaxTries && num_kills < kMaxKills; ++tries) {
    if (tries > 0) poll(nullptr, 0, kFirstPauseMs << (tries - 1));
    try {
      SandboxRun run = try_run(interpreter, job, limits);
      if (run.end == SandboxRun::kKilled) {
        why = "something outside the sandbox killed the program (SIGKILL); the machine may have run out of memory";
        ++num_kills;
      } else if (run.end == SandboxRun::kNotStarted) {
        why = "the sandbox did not start: " + run.errors;
      } else {
        return run;
      }
    } catch (const Failure& e) {
      if (e.code != MORTISE_RESOURCE_EXHAUSTED) throw;
      why = e.what();
    }
  }
  fail(MORTISE_RESOURCE_EXHAUSTED,
       why + ". Give the run more memory or processes, or lower plugins.num_workers or memory_mib");
}

}  // namespace mortise
