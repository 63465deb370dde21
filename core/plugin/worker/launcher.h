// Starts the keeper of a pool (zygote.h) as a program of its own and talks to it.
//
// The program is mortise-worker, started by posix_spawn: the trainer, with its threads, is never forked as it is. In a
// process group of its own, so that Ctrl-C at the terminal reaches the trainer alone. Threading: one thread at a time.
#pragma once

#include <sys/types.h>

#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <string>

#include "plugin/worker/channel.h"
#include "plugin/worker/messages.h"

namespace mortise {

inline constexpr const char* kWorkerArgument = "--serve-trainer";
inline constexpr int kWorkerSocket = 3;

// mortise-worker beside this program, or in ../bin; an error says where it was looked for.
Result<std::filesystem::path> find_worker_program();
// bwrap on PATH; empty where there is none.
std::filesystem::path find_bubblewrap();
// Whether this kernel has what workers need (memfd, pidfd); the error says what it lacks.
Result<> check_worker_support();

class Keeper {
 public:
  // `bubblewrap` empty: without it. Returns when the pack is loaded.
  static Result<std::unique_ptr<Keeper>> start(const std::filesystem::path& program,
                                               const std::filesystem::path& bubblewrap, const LoadMessage& load);
  ~Keeper();
  Keeper(const Keeper&) = delete;
  Keeper& operator=(const Keeper&) = delete;

  // Asks for a worker that serves `socket`.
  Result<> fork_worker(int64_t worker, const Fd& socket);
  // Reads what has come within `timeout_ms`. An error: the keeper has ended, and with it all its workers.
  Result<> pump(int timeout_ms);
  [[nodiscard]] int fd() const { return channel_.fd(); }
  // Handle of a worker's process; -1 until it is known.
  [[nodiscard]] int pidfd(int64_t worker) const;
  // How it ended, as of waitpid; nothing while it runs.
  [[nodiscard]] std::optional<int> exit_status(int64_t worker) const;
  void forget(int64_t worker);

  [[nodiscard]] const LoadedMessage& loaded() const { return loaded_; }

 private:
  Keeper() = default;
  Result<> spawn(const std::filesystem::path& program, const std::filesystem::path& bubblewrap,
                 const WorkerLimits& limits);
  Result<> greet(const LoadMessage& load);

  pid_t pid_ = -1;
  Channel channel_;
  LoadedMessage loaded_;
  std::map<int64_t, Fd> pidfds_;
  std::map<int64_t, int> exits_;
};

}  // namespace mortise
