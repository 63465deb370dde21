// Starts the fork server of a pool (fork_server.h) as its own program and talks to it.
//
// The program is mortise-worker, started by posix_spawn, because the trainer has threads and must not fork. It has its
// own process group, so that Ctrl-C at the terminal reaches only the trainer. Threading: one thread at a time.
#pragma once

#include <sys/types.h>

#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "plugin/worker/channel.h"
#include "plugin/worker/messages.h"
#include "plugin/worker/system.h"

namespace mortise {

inline constexpr const char* kWorkerArgument = "--serve-trainer";
inline constexpr int kWorkerSocket = 3;
inline constexpr int64_t kSpawnRetryMs = 20'000;

// mortise-worker next to this program, or in ../bin; an error says where it was looked for.
Result<std::filesystem::path> find_worker_program();
// bwrap on PATH; empty if there is none.
std::filesystem::path find_bubblewrap();
// Whether this kernel has what workers need (memfd); the error says what it lacks.
Result<> check_worker_support();

// The outcome of a requested worker.
struct WorkerFate {
  int status = 0;      // as of waitpid
  int fork_error = 0;  // errno; 0: there was a process, and it has ended
};

class ForkServerClient {
 public:
  // `bubblewrap` empty: without it. Returns when the pack is loaded. If the machine refuses a process for now, it asks
  // again for kSpawnRetryMs.
  static Result<std::unique_ptr<ForkServerClient>> start(const std::filesystem::path& program,
                                                         const std::filesystem::path& bubblewrap,
                                                         const LoadMessage& load, WorkerSystem& system);
  ~ForkServerClient();
  ForkServerClient(const ForkServerClient&) = delete;
  ForkServerClient& operator=(const ForkServerClient&) = delete;

  // Requests a worker that serves `socket`. fate() reports it if there can be none.
  Result<> fork_worker(int64_t worker, const Fd& socket);
  // fate() reports when it has ended.
  Result<> kill_worker(int64_t worker);
  // Reads what has come within `timeout_ms`. An error: the fork server has ended, and with it all its workers.
  Result<> pump(int timeout_ms);
  [[nodiscard]] int fd() const { return channel_.fd(); }
  // Nothing while it runs, or is still to be forked.
  [[nodiscard]] std::optional<WorkerFate> fate(int64_t worker) const;
  void forget(int64_t worker) { workers_.erase(worker); }

  [[nodiscard]] const LoadedMessage& loaded() const { return loaded_; }

 private:
  explicit ForkServerClient(WorkerSystem& system) : system_(system) {}
  Result<> spawn(const std::filesystem::path& program, const std::filesystem::path& bubblewrap,
                 const WorkerLimits& limits);
  Result<> try_spawn(std::vector<std::string>& words, std::vector<std::string>& variables, int* code);
  Result<> greet(const LoadMessage& load);
  Result<> check_origin(const Frame& frame);

  WorkerSystem& system_;
  pid_t pid_ = -1;
  Channel channel_;
  int64_t process_ = 0;  // the fork server, as it sees itself; 0: not known yet
  LoadedMessage loaded_;
  std::map<int64_t, std::optional<WorkerFate>> workers_;  // requested and not forgotten
};

}  // namespace mortise
