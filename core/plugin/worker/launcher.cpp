// Finds and starts mortise-worker, with bubblewrap if possible, and exchanges messages with it.
#include "plugin/worker/launcher.h"

#include <fcntl.h>
#include <fmt/core.h>
#include <spawn.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <initializer_list>

#include "foundation/base/hints.h"
#include "foundation/base/open_files.h"
#include "foundation/base/text.h"
#include "foundation/base/this_program.h"
#include "plugin/worker/environment.h"
#include "plugin/worker/retry_policy.h"

namespace mortise {
namespace {

namespace fs = std::filesystem;
constexpr int kHelloTimeoutMs = 60'000;
constexpr int kLoadTimeoutMs = 60'000;

Error launch_error(std::string what, std::string next = "") {
  return {ErrorKind::kPlugin, std::move(what), "mortise-worker", std::move(next)};
}

// Whether the machine may allow a moment later what it refused with this errno.
bool may_pass(int code) { return code == EAGAIN || code == ENOMEM || code == EMFILE || code == ENFILE; }

std::vector<std::string> command_line(const fs::path& program, const fs::path& bubblewrap, const WorkerLimits& limits) {
  std::vector<std::string> words;
  if (!bubblewrap.empty()) {
    words = {bubblewrap.string(), "--unshare-pid", "--unshare-ipc", "--unshare-uts"};
    if (!limits.network) words.emplace_back("--unshare-net");
    const auto add = [&](std::initializer_list<const char*> more) {
      words.insert(words.end(), more.begin(), more.end());
    };
    // A device is a file to be written: who may write files has the machine's (a Python reward its GPU), the others the
    // few that do nothing. /dev/shm holds data either way.
    if (limits.write_files) {
      add({"--bind", "/", "/", "--dev-bind", "/dev", "/dev"});
    } else {
      add({"--ro-bind", "/", "/", "--dev", "/dev", "--ro-bind-try", "/dev/shm", "/dev/shm"});
    }
    add({"--proc", "/proc", "--"});
  }
  words.push_back(program.string());
  words.emplace_back(kWorkerArgument);
  return words;
}

// The settings of a posix_spawn, freed with their owner.
struct SpawnSettings {
  posix_spawn_file_actions_t files{};
  posix_spawnattr_t attributes{};

  explicit SpawnSettings(int socket) {
    ::posix_spawn_file_actions_init(&files);
    ::posix_spawn_file_actions_addopen(&files, 0, "/dev/null", O_RDONLY, 0);
    ::posix_spawn_file_actions_adddup2(&files, 2, 1);  // a plugin's output must not enter our standard output
    ::posix_spawn_file_actions_adddup2(&files, socket, kWorkerSocket);
    ::posix_spawn_file_actions_addclosefrom_np(&files, kWorkerSocket + 1);
    ::posix_spawnattr_init(&attributes);
    sigset_t all, none;
    sigfillset(&all);
    sigemptyset(&none);
    ::posix_spawnattr_setsigdefault(&attributes, &all);
    ::posix_spawnattr_setsigmask(&attributes, &none);
    ::posix_spawnattr_setpgroup(&attributes, 0);
    ::posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETSIGDEF | POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETPGROUP);
  }
  SpawnSettings(const SpawnSettings&) = delete;
  SpawnSettings& operator=(const SpawnSettings&) = delete;
  ~SpawnSettings() {
    ::posix_spawn_file_actions_destroy(&files);
    ::posix_spawnattr_destroy(&attributes);
  }
};

}  // namespace

Result<fs::path> find_worker_program() {
  const fs::path self = this_program().parent_path();
  for (const fs::path& place : {self / "mortise-worker", self.parent_path() / "bin" / "mortise-worker"}) {
    if (::access(place.c_str(), X_OK) == 0) return place;
  }
  return launch_error(
      fmt::format("the program is neither in {} nor in {}", self.string(), (self.parent_path() / "bin").string()),
      "install it next to mortise");
}

fs::path find_bubblewrap() {
  const char* const path = std::getenv("PATH");
  for (const std::string_view folder : split(path == nullptr ? "/usr/bin:/bin" : path, ':')) {
    const fs::path place = fs::path(folder) / "bwrap";
    if (!folder.empty() && folder.front() == '/' && ::access(place.c_str(), X_OK) == 0) return place;
  }
  return {};
}

Result<> check_worker_support() {
  const Fd memory(::memfd_create("mortise-check", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (!memory.valid()) {
    const int code = errno;
    return launch_error(std::string("memfd_create failed: ") + std::strerror(code), resource_advice(code, ""));
  }
  return {};
}

Result<std::unique_ptr<ForkServerClient>> ForkServerClient::start(const fs::path& program, const fs::path& bubblewrap,
                                                                  const LoadMessage& load, WorkerSystem& system) {
  std::unique_ptr<ForkServerClient> client(new ForkServerClient(system));
  TRY(client->spawn(program, bubblewrap, load.limits));
  TRY(client->greet(load));
  return client;
}

Result<> ForkServerClient::spawn(const fs::path& program, const fs::path& bubblewrap, const WorkerLimits& limits) {
  std::vector<std::string> words = command_line(program, bubblewrap, limits);
  std::vector<std::string> variables = worker_environment(::environ, limits.env);
  BackOff pause(20, 2'000);
  while (true) {
    int code = 0;
    auto spawned = try_spawn(words, variables, &code);
    if (spawned.ok() || !may_pass(code) || pause.failing_ms(system_.monotonic_ns()) >= kSpawnRetryMs) return spawned;
    pause.fail(system_.monotonic_ns());
    system_.sleep_ms(pause.wait_ms(system_.monotonic_ns()));
  }
}

Result<> ForkServerClient::try_spawn(std::vector<std::string>& words, std::vector<std::string>& variables, int* code) {
  auto ends = Channel::pair(system_);
  if (!ends.ok()) {
    *code = EMFILE;  // or memory: either may pass
    return std::move(ends).error();
  }
  channel_ = std::move(ends->first);
  const SpawnSettings settings(ends->second.fd());
  std::vector<char*> arguments;
  for (std::string& word : words) arguments.push_back(word.data());
  arguments.push_back(nullptr);
  std::vector<char*> environment;
  for (std::string& variable : variables) environment.push_back(variable.data());
  environment.push_back(nullptr);
  *code =
      system_.spawn(&pid_, arguments[0], &settings.files, &settings.attributes, arguments.data(), environment.data());
  if (*code == 0) return {};
  pid_ = -1;
  return launch_error("cannot be started: " + std::string(std::strerror(*code)),
                      resource_advice(*code, "look at " + words.front()));
}

Result<> ForkServerClient::greet(const LoadMessage& load) {
  const auto next = [&](int timeout_ms, const std::string& what) -> Result<Frame> {
    auto frame = TRY(channel_.receive(timeout_ms));
    if (!frame && channel_.closed()) {
      const std::string memory = memory_setting(load.limits);
      return launch_error("ended before it " + what,
                          memory.empty() ? "see what it printed above, and the system's log for who killed it"
                                         : "if it ran out of memory, raise " + memory);
    }
    if (!frame) return launch_error("took too long before it " + what, "see what else keeps this machine busy");
    if (frame->kind == kError) return decode_error(frame->body);
    TRY(check_origin(*frame));
    return std::move(*frame);
  };
  const Frame hello_frame = TRY(next(kHelloTimeoutMs, "said hello"));
  HelloMessage hello;
  if (hello_frame.kind != kHello || !decode(hello_frame.body, hello).ok() || hello.protocol != kProtocol ||
      hello.abi_minor != MORTISE_ABI_MINOR) {
    return launch_error(fmt::format("speaks protocol {}, ABI minor {}, the trainer {} and {}", hello.protocol,
                                    hello.abi_minor, kProtocol, MORTISE_ABI_MINOR),
                        hints::kOneBuildOfWorkers);
  }
  TRY(channel_.send(kLoad, encode(load), {}, kHelloTimeoutMs));
  const Frame frame = TRY(next(kLoadTimeoutMs, "had loaded " + load.path));
  if (frame.kind != kLoaded) return launch_error("answered something else than that the pack is loaded");
  return decode(frame.body, loaded_);
}

// One process answers, from its hello on.
Result<> ForkServerClient::check_origin(const Frame& frame) {
  if (process_ == 0) process_ = frame.process;
  if (frame.process == process_ && (!is_answer(frame.kind) || frame.request == channel_.request())) return {};
  return launch_error("a message of another process or to another request came from the fork server of the workers",
                      "the code of the pack that runs when it is loaded forks: end the child there with _exit(0)");
}

ForkServerClient::~ForkServerClient() {
  if (pid_ < 0) return;
  channel_ = Channel();  // the order to stop
  for (int waited_ms = 0; waited_ms < 500; ++waited_ms) {
    if (system_.waitpid(pid_, nullptr, WNOHANG) != 0) return;
    system_.sleep_ms(1);
  }
  system_.kill(-pid_, SIGKILL);  // its group: inside bubblewrap the fork server is a child of our child
  system_.waitpid(pid_, nullptr, 0);
}

Result<> ForkServerClient::fork_worker(int64_t worker, const Fd& socket) {
  const int number = socket.get();
  TRY(channel_.send(kFork, encode(WorkerMessage{worker}), {&number, 1}, kHelloTimeoutMs));
  workers_[worker] = std::nullopt;
  return {};
}

Result<> ForkServerClient::kill_worker(int64_t worker) {
  return channel_.send(kKill, encode(WorkerMessage{worker}), {}, kHelloTimeoutMs);
}

Result<> ForkServerClient::pump(int timeout_ms) {
  while (auto frame = TRY(channel_.receive(timeout_ms))) {
    TRY(check_origin(*frame));
    timeout_ms = 0;
    int64_t worker = 0;
    WorkerFate fate;
    if (frame->kind == kForkFailed) {
      ForkFailedMessage failed;
      TRY(decode(frame->body, failed));
      worker = failed.worker;
      fate.fork_error = static_cast<int>(failed.code);
    } else if (frame->kind == kExited) {
      ExitedMessage exited;
      TRY(decode(frame->body, exited));
      worker = exited.worker;
      fate.status = static_cast<int>(exited.status);
    } else {
      return launch_error("sent the unknown message " + std::to_string(frame->kind));
    }
    if (const auto it = workers_.find(worker); it != workers_.end()) it->second = fate;
  }
  if (channel_.closed()) {
    return launch_error("the fork server of the workers has ended",
                        "see the system's log for who killed it; the usual cause is memory");
  }
  return {};
}

std::optional<WorkerFate> ForkServerClient::fate(int64_t worker) const {
  const auto it = workers_.find(worker);
  return it == workers_.end() ? std::nullopt : it->second;
}

}  // namespace mortise
