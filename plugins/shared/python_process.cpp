// Starts the interpreter in a process group, and exchanges frames with it.
#include "python_process.h"

#include <fcntl.h>
#include <poll.h>
#include <spawn.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstring>

#include "deadline.h"
#include "spawn_attributes.h"

namespace mortise {
namespace {

constexpr int kDriverSocket = 3;
constexpr int kSliceMs = 100;  // between two looks at whether the run is stopping
constexpr std::uint64_t kMaxFrameBytes = std::uint64_t(1) << 36;
constexpr std::size_t kHeadBytes = 24;

struct SpawnSettings {
  posix_spawn_file_actions_t files{};
  SpawnAttributes attributes;

  explicit SpawnSettings(int socket) {
    posix_spawn_file_actions_init(&files);
    posix_spawn_file_actions_addopen(&files, 0, "/dev/null", O_RDONLY, 0);
    posix_spawn_file_actions_adddup2(&files, 2, 1);  // what the user's code prints goes to standard error
    posix_spawn_file_actions_adddup2(&files, socket, kDriverSocket);
    posix_spawn_file_actions_addclosefrom_np(&files, kDriverSocket + 1);
  }
  SpawnSettings(const SpawnSettings&) = delete;
  SpawnSettings& operator=(const SpawnSettings&) = delete;
  ~SpawnSettings() { posix_spawn_file_actions_destroy(&files); }
};

[[noreturn]] void fail_to_start(const std::string& interpreter, int code) {
  std::string text = "the Python interpreter '" + interpreter + "' cannot be started: " + std::strerror(code);
  if (code == ENOENT) {
    text += interpreter.find('/') == std::string::npos ? "; it is not in PATH" : "; there is no such file";
    text += ". Install it, or name another with python = \"/path/to/python3\"";
  } else if (code == EPERM) {
    text += "; this worker may not start programs: add allow = [\"programs\"] to the table of the plugin";
  }
  fail(MORTISE_FAILED_PRECONDITION, text);
}

std::string describe_exit(int status) {
  if (WIFSIGNALED(status)) {
    const char* const name = strsignal(WTERMSIG(status));
    return "signal " + std::to_string(WTERMSIG(status)) + " (" + (name == nullptr ? "unknown" : name) + ")";
  }
  return "exit code " + std::to_string(WEXITSTATUS(status));
}

void put_number(char* at, std::uint64_t number) {
  for (int i = 0; i < 8; ++i) at[i] = char(number >> (8 * i) & 0xFF);
}

std::uint64_t read_number(const unsigned char* at) {
  std::uint64_t number = 0;
  for (int i = 7; i >= 0; --i) number = number << 8 | at[i];
  return number;
}

}  // namespace

void PythonProcess::start(const std::string& interpreter, const char* program_text) {
  end();
  request_ = answerer_ = 0;
  int ends[2];
  if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) != 0)
    fail(MORTISE_RESOURCE_EXHAUSTED, std::string("no socket for the Python process: ") + std::strerror(errno));
  std::string program = interpreter, unbuffered = "-u", command = "-c", driver = program_text;
  char* const arguments[] = {program.data(), unbuffered.data(), command.data(), driver.data(), nullptr};
  const SpawnSettings settings(ends[1]);
  const int code = posix_spawnp(&pid_, program.c_str(), &settings.files, settings.attributes.get(), arguments, environ);
  close(ends[1]);
  socket_ = ends[0];
  if (code == 0) return;
  pid_ = -1;
  end();
  fail_to_start(interpreter, code);
}

bool PythonProcess::has_exited() const {
  siginfo_t ended{};
  return waitid(P_PID, id_t(pid_), &ended, WEXITED | WNOHANG | WNOWAIT) != 0 || ended.si_pid != 0;
}

// Waits for `events`. A child that the user's code forked may hold the socket open: the process itself is looked at
// too.
Transfer PythonProcess::wait(short events, const Patience& patience) const {
  while (true) {
    int slice_ms = kSliceMs;
    if (patience.deadline_ns != 0) {
      const std::int64_t left_ns = patience.deadline_ns - monotonic_ns();
      if (left_ns <= 0) return Transfer::kTooLate;
      slice_ms = int(std::min<std::int64_t>(slice_ms, left_ns / 1'000'000 + 1));
    }
    pollfd entry{socket_, events, 0};
    if (poll(&entry, 1, slice_ms) > 0) return Transfer::kDone;
    if (has_exited()) return Transfer::kEnded;
    if (patience.call.cancelled() && (patience.deadline_ns == 0 || monotonic_ns() < patience.deadline_ns))
      return Transfer::kStopped;
  }
}

Transfer PythonProcess::send(std::string_view body, const Patience& patience) {
  char head[kHeadBytes];
  put_number(head, body.size());
  put_number(head + 8, ++request_);
  put_number(head + 16, 0);
  for (std::string_view rest : {std::string_view(head, kHeadBytes), body}) {
    while (!rest.empty()) {
      const Transfer ready = wait(POLLOUT, patience);
      if (ready != Transfer::kDone) return ready;
      const ssize_t sent = ::send(socket_, rest.data(), rest.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
      if (sent > 0) {
        rest.remove_prefix(std::size_t(sent));
      } else if (sent < 0 && errno != EAGAIN && errno != EINTR) {
        return Transfer::kEnded;
      }
    }
  }
  return Transfer::kDone;
}

Transfer PythonProcess::read_exactly(char* at, std::size_t size, const Patience& patience) {
  while (size > 0) {
    const Transfer ready = wait(POLLIN, patience);
    if (ready != Transfer::kDone) return ready;
    const ssize_t got = recv(socket_, at, size, MSG_DONTWAIT);
    if (got > 0) {
      at += got;
      size -= std::size_t(got);
    } else if (got == 0 || (errno != EAGAIN && errno != EINTR)) {
      return Transfer::kEnded;
    }
  }
  return Transfer::kDone;
}

Transfer PythonProcess::receive(std::string& body, const Patience& patience) {
  unsigned char head[kHeadBytes];
  Transfer got = read_exactly(reinterpret_cast<char*>(head), sizeof head, patience);
  if (got != Transfer::kDone) return got;
  const std::uint64_t size = read_number(head), request = read_number(head + 8), answerer = read_number(head + 16);
  if (answerer_ == 0) answerer_ = answerer;
  if (answerer != answerer_) return refuse("an answer of another process");
  if (request != request_) return refuse("an answer to another request");
  if (size > kMaxFrameBytes) return refuse("an answer of impossible length");
  body.resize(std::size_t(size));
  return read_exactly(body.data(), body.size(), patience);
}

Transfer PythonProcess::refuse(const std::string& what) {
  stray_ =
      what +
      " came from the Python process: its code forked and the child returned, or it wrote to a file descriptor that "
      "it had not opened. End a forked child with os._exit(0)";
  return Transfer::kForeign;
}

std::string PythonProcess::end(int grace_ms) {
  if (socket_ >= 0) close(socket_);  // the order to stop
  socket_ = -1;
  if (pid_ <= 0) return "no process";
  for (int waited_ms = 0; waited_ms < grace_ms && !has_exited(); ++waited_ms) poll(nullptr, 0, 1);
  kill(-pid_, SIGKILL);  // while the number still belongs to it
  int status = 0;
  const bool known = waitpid(pid_, &status, 0) == pid_;
  pid_ = -1;
  return known ? describe_exit(status) : "an unknown cause";
}

}  // namespace mortise
