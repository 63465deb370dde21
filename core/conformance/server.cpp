// The server's loop: reads a request, forks, runs one case, and reports how the process ended.
#include "conformance/server.h"

#include <fmt/core.h>

#include <fcntl.h>
#include <poll.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <optional>
#include <utility>

#include "conformance/guarded_memory.h"
#include "conformance/process_state.h"
#include "foundation/base/clock.h"
#include "foundation/base/text.h"
#include "plugin/host/instance.h"

namespace mortise::check {
namespace {

constexpr size_t kMaxOutput = 4096;

// The next line of `fd`; nothing at its end.
std::optional<std::string> read_line(int fd, std::string& buffer) {
  while (true) {
    if (const size_t end = buffer.find('\n'); end != std::string::npos) {
      std::string line = buffer.substr(0, end);
      buffer.erase(0, end + 1);
      return line;
    }
    char piece[65536];
    const ssize_t count = ::read(fd, piece, sizeof piece);
    if (count < 0 && errno == EINTR) continue;
    if (count <= 0) return std::nullopt;
    buffer.append(piece, static_cast<size_t>(count));
  }
}

Json verdict_json(const Result<std::string>& done) {
  if (done.ok()) return {{"status", "passed"}, {"text", *done}};
  const Error& error = done.error();
  return {{"status", is_not_applicable(error) ? "not_applicable" : "failed"}, {"text", error.to_string()}};
}

// In the forked process: what the case needs around it, the case, its verdict, the end.
[[noreturn]] void be_the_case(const Request& request, Result<ReadPack>& pack, int report, int output) {
  ::setpgid(0, 0);  // so that what it starts can be ended with it
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  const int nothing = ::open("/dev/null", O_RDONLY | O_CLOEXEC);
  ::dup2(nothing, 0);  // not the requests of the cases to come
  ::close(nothing);
  ::dup2(output, 1);
  ::dup2(output, 2);
  ::close(output);
  const rlimit no_core{0, 0};
  ::setrlimit(RLIMIT_CORE, &no_core);
  for (const int signal : {SIGINT, SIGTERM, SIGPIPE}) ::signal(signal, SIG_DFL);
  report_faults(report);
  Result<std::string> done("");
  try {
    done = run_case(request, pack);
  } catch (const std::exception& e) {
    done = Error{ErrorKind::kInternal, std::string("the case itself failed: ") + e.what(), "", ""};
  }
  const std::string line = dump_json(verdict_json(done)) + "\n";
  // The end of the process is part of the case: static destructors of the pack run now.
  if (write_all(report, line)) std::exit(0);
  ::_exit(3);
}

struct Ended {
  std::string line;  // the case's line; may be empty
  int status = 0;    // as waitpid gives it
  bool timed_out = false;
};

// Reads the verdict and waits for the end, for timeout_ms at most.
Ended watch(pid_t child, int report, int64_t timeout_ms) {
  Ended out;
  const int pidfd = static_cast<int>(::syscall(SYS_pidfd_open, child, 0));
  const Stopwatch stopwatch;
  bool open = true, alive = true;
  while (alive) {
    const int64_t left = timeout_ms - stopwatch.elapsed_ns() / 1'000'000;
    pollfd polls[2] = {{pidfd, POLLIN, 0}, {report, static_cast<short>(open ? POLLIN : 0), 0}};
    const int ready = ::poll(polls, open ? 2 : 1, static_cast<int>(std::max<int64_t>(left, 0)));
    if (ready < 0 && errno != EINTR) break;
    if (ready == 0 || left <= 0) {
      out.timed_out = true;
      break;
    }
    if (open && (polls[1].revents & (POLLIN | POLLHUP)) != 0) {
      char piece[4096];
      const ssize_t count = ::read(report, piece, sizeof piece);
      if (count > 0) out.line.append(piece, static_cast<size_t>(count));
      open = count > 0;
    }
    alive = pidfd >= 0 ? (polls[0].revents & POLLIN) == 0 : open;  // an old kernel: the report's end must do
  }
  ::kill(-child, SIGKILL);  // the case if it hangs, and whatever it started
  if (out.timed_out) ::kill(child, SIGKILL);
  while (::waitpid(child, &out.status, 0) < 0 && errno == EINTR) {
  }
  if (open && !out.timed_out) {  // the end came first
    char piece[4096];
    pollfd last{report, POLLIN, 0};
    while (::poll(&last, 1, 0) > 0 && (last.revents & POLLIN) != 0) {
      const ssize_t count = ::read(report, piece, sizeof piece);
      if (count <= 0) break;
      out.line.append(piece, static_cast<size_t>(count));
    }
  }
  if (pidfd >= 0) ::close(pidfd);
  return out;
}

std::string signal_phrase(int signal) {
  const char* name = ::sigabbrev_np(signal);
  return fmt::format("SIG{} ({})", name == nullptr ? std::to_string(signal) : name, ::strsignal(signal));
}

Json reply_of(const Ended& ended, int64_t timeout_ms) {
  Json reply = {{"status", "exited"}, {"text", ""}};
  const std::string first = ended.line.substr(0, ended.line.find('\n'));
  auto verdict = parse_json(first, "verdict");
  const bool has_verdict = verdict.ok() && json_find(*verdict, "status") != nullptr;
  if (has_verdict) reply = *verdict;
  const std::string text = has_verdict ? reply["text"].get<std::string>() : "";
  const auto add = [&](const std::string& status, const std::string& what) {
    reply["status"] = status;
    reply["text"] = text.empty() ? what : fmt::format("{}; {}", text, what);
  };
  const bool passed = has_verdict && reply["status"] != "failed";
  if (ended.timed_out) {
    add("timed_out", fmt::format("{} within {}", passed ? "the process did not end" : "no answer",
                                 format_duration(static_cast<double>(timeout_ms) * 1e-3)));
  } else if (WIFSIGNALED(ended.status)) {
    add("crashed", std::string(passed ? "the process ended by " : "ended by ") + signal_phrase(WTERMSIG(ended.status)));
  } else if (!has_verdict || WEXITSTATUS(ended.status) != 0) {
    add("exited", "the plugin ended the process with code " + std::to_string(WEXITSTATUS(ended.status)));
  }
  return reply;
}

std::string printed(int output) {
  std::string text(kMaxOutput, '\0');
  const ssize_t size = ::pread(output, text.data(), text.size(), 0);
  text.resize(size > 0 ? static_cast<size_t>(size) : 0);
  return text;
}

// What the file says of itself, and its sealed copy, which every case that loads it shares.
Result<ReadPack> read_pack(const std::string& path) {
  try {
    PackFile file = TRY(PackFile::open(path));
    ReadPack pack{.info = info_of(file), .sealed = std::nullopt};
    if (file.seal().ok()) pack.sealed = std::move(file);
    return pack;
  } catch (const std::exception& e) {
    return Error{ErrorKind::kInternal, std::string("the pack could not be read: ") + e.what(), path, ""};
  }
}

Json serve_one(const Request& request, Result<ReadPack>& pack) {
  int report[2];
  const int output = ::memfd_create("output of a case", MFD_CLOEXEC);
  if (output < 0 || ::pipe2(report, O_CLOEXEC) != 0)
    return {{"status", "failed"}, {"text", std::string("the check could not start: ") + ::strerror(errno)}};
  const Stopwatch stopwatch;
  const pid_t child = ::fork();
  if (child == 0) {
    ::close(report[0]);
    be_the_case(request, pack, report[1], output);
  }
  ::close(report[1]);
  Json reply = {{"status", "failed"}, {"text", std::string("the check could not fork: ") + ::strerror(errno)}};
  if (child > 0) {
    ::setpgid(child, child);
    reply = reply_of(watch(child, report[0], request.timeout_ms), request.timeout_ms);
  }
  reply["output"] = printed(output);
  reply["seconds"] = stopwatch.elapsed_s();
  ::close(report[0]);
  ::close(output);
  return reply;
}

}  // namespace

bool write_all(int fd, std::string_view text) {
  while (!text.empty()) {
    const ssize_t count = ::write(fd, text.data(), text.size());
    if (count < 0 && errno == EINTR) continue;
    if (count <= 0) return false;
    text.remove_prefix(static_cast<size_t>(count));
  }
  return true;
}

Result<std::string> run_case(const Request& request, Result<ReadPack>& pack) {
  const Case* one = find_case(request.case_id);
  if (one == nullptr) return Error{ErrorKind::kInternal, "there is no case " + quote(request.case_id), "", ""};
  if (!pack.ok()) return pack.error();
  if (pack->info.sha256 != request.sha256)
    return Error{ErrorKind::kPlugin, "the file has changed since the check began", request.pack,
                 "check it again when its build is done"};
  set_plugin_threads(1);  // open() gets the engine's own table: no threads that are not the pack's
  Subject subject(request, pack->info, pack->sealed ? &*pack->sealed : nullptr);
  if (one->needs_load) TRY(subject.load());
  TRY(one->run(subject));
  return subject.noted();
}

int serve_cases() {
  constexpr int in = 0, out = 1;
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  for (const int signal : {SIGINT, SIGTERM}) ::signal(signal, SIG_DFL);
  ::signal(SIGPIPE, SIG_IGN);
  if (ProcessState::now().num_threads != 1) {
    write_all(out, "{\"status\":\"failed\",\"text\":\"the case server has more than one thread\"}\n");
    return static_cast<int>(ErrorKind::kInternal);
  }
  std::string buffer, path;
  Result<ReadPack> pack = ReadPack();  // what the file `path` says, which is read once for all of its cases
  while (const auto line = read_line(in, buffer)) {
    auto request = parse_request(*line);
    Json reply = {{"status", "failed"}, {"text", request.ok() ? "" : request.error().to_string()}};
    if (request.ok()) {
      if (std::exchange(path, request->pack) != request->pack) pack = read_pack(path);
      reply = serve_one(*request, pack);
    }
    if (!write_all(out, dump_json(reply) + "\n")) return static_cast<int>(ErrorKind::kInternal);
  }
  return 0;
}

}  // namespace mortise::check
