// The worker processes of one plugin: as many as may work at once, and perhaps a spare. All are loaded, so the spare can
// replace a worker that dies while a new one starts.
//
// If the machine refuses a worker for now (no process, no descriptor, no memory), the supervisor asks again, with
// pauses that double, and the plugin continues with the others. It starts a fork server that dies again, but only so
// often within a window of time, however long the run is. Threading: one thread at a time.
#pragma once

#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "plugin/worker/launcher.h"
#include "plugin/worker/messages.h"
#include "plugin/worker/retry_policy.h"
#include "plugin/worker/shared_memory.h"
#include "plugin/worker/system.h"

namespace mortise {

inline constexpr size_t kMaxServerDeaths = 3;  // within a window; one more ends the run
inline constexpr int64_t kDeathWindowMs = 60'000;
inline constexpr int kMaxFailedStarts = 5;      // workers in a row that end before they are ready
inline constexpr int64_t kNoWorkerMs = 60'000;  // without any worker; then the run ends

// One worker process, seen from the trainer.
struct Slot {
  int64_t id = 0;
  int64_t asked_ns = 0;  // when it was requested
  Channel channel;
  bool ready = false;               // its instance can work
  bool busy = false;                // it has a piece or a call
  int64_t process = 0;              // that sent its first message; 0: none yet
  std::optional<Error> stray = {};  // it sent what is no answer to its request; then nothing of it counts any more
  int64_t area_number = -1;         // the rows that it has mapped; of a loss or estimator: the inputs
  int64_t block = -1;               // the block of the arena that it has open; of a loss or estimator: the outputs
  int64_t state_count = 0;          // which of the plugin's states it holds (CarriedState)
  SharedMemory output;
  OutputArea area;
};

struct WorkerEnd {
  std::string text;  // "signal 11 (Segmentation fault)"
  int signal = 0;    // 0: none
};

struct PoolOptions {
  int num_workers = 1;
  bool has_spare = true;  // one more that is ready, in case a worker ends
  std::filesystem::path program;
  std::filesystem::path bubblewrap;  // empty: not used
  std::string without;               // why it is not, for the log; may be empty
  WorkerSystem* system = &real_worker_system();
};

class Supervisor {
 public:
  // Starts the fork server and one worker, and returns when that is ready: a plugin that cannot be created is an error
  // here. fill() starts the others.
  static Result<std::unique_ptr<Supervisor>> start(const LoadMessage& load, const PoolOptions& options);

  [[nodiscard]] const ReadyMessage& ready() const { return ready_; }
  // What its workers may do, for the log.
  [[nodiscard]] std::string limits_text() const;
  // Why the workers run without bubblewrap; empty if they run in it.
  [[nodiscard]] const std::string& without() const { return options_.without; }
  [[nodiscard]] int num_workers() const { return options_.num_workers; }
  // A reward with state, or one that gets all rows at once, lives in one worker; call before fill().
  void use_one_worker() { options_.num_workers = 1; }

  [[nodiscard]] std::vector<std::unique_ptr<Slot>>& slots() { return slots_; }
  // A ready one without work, if fewer than num_workers() are busy; else null.
  [[nodiscard]] Slot* idle_slot() const;
  // As idle_slot, waiting for one that is being made.
  Result<Slot*> wait_idle(int timeout_ms);

  // The worker's next message, as Channel::receive. An error if it comes from another process or answers another request
  // than the last; from then on always, and has_ended() is true.
  Result<std::optional<Frame>> receive(Slot& slot, int timeout_ms);

  // Waits for news of any worker or of the fork server, and starts the workers that are missing.
  Result<> wait(int timeout_ms);
  // Starts missing workers, as far as the machine allows it. An error: there has been no worker for too long.
  Result<> fill();
  // A message of a worker without work: that it is ready or cannot be, or a line for the log. An error: no instance can
  // be made.
  Result<> take_message(Slot& slot, const Frame& frame);
  // Or takes so long to get ready that it is as good as dead.
  [[nodiscard]] bool has_ended(const Slot& slot) const;
  // Ends the process if it still runs and says how it ended. Its messages can still be read; replace() it then.
  WorkerEnd end(Slot& slot);
  // Forgets it and starts a successor. An error: too many in a row have ended before they were ready.
  Result<> replace(Slot& slot);

  // Why the fork server, and with it every worker, has ended. Then call restart().
  [[nodiscard]] const std::optional<Error>& lost() const { return lost_; }
  // A new fork server with new workers. An error: it has ended too often within the window.
  Result<> restart();

 private:
  Supervisor(const LoadMessage& load, const PoolOptions& options)
      : load_(load), options_(options), system_(*options.system) {}
  Result<> start_fork_server();
  [[nodiscard]] size_t num_wanted() const {
    return static_cast<size_t>(options_.num_workers) + (options_.has_spare ? 1 : 0);
  }
  Result<> start_bare_or_sandboxed();
  Result<std::unique_ptr<ForkServerClient>> start_client();
  Result<> add_slot();
  Result<> note_failed_start();
  Result<> turn_starting_slots();
  void lose(const Error& why);
  WorkerEnd kill_and_ask(const Slot& slot);
  void refuse(Slot& slot, const std::string& what);
  // Until it has ended, at most so long.
  void wait_for_fate(const Slot& slot, int64_t timeout_ms);

  LoadMessage load_;
  PoolOptions options_;
  WorkerSystem& system_;
  std::unique_ptr<ForkServerClient> fork_server_;
  std::vector<std::unique_ptr<Slot>> slots_;
  ReadyMessage ready_;
  bool was_ready_ = false;  // a worker has been, so an error of create() is one of the moment
  int64_t next_id_ = 1;
  std::optional<Error> lost_;
  EventWindow deaths_{kDeathWindowMs};  // deaths of the fork server
  BackOff starts_{10, 2'000};           // pause between starts of workers
  int num_failed_starts_ = 0;           // in a row, of processes that were there
  std::string last_end_;                // how the last of them ended
  std::optional<Error> start_error_;    // why no process could be made
};

// "signal 11 (Segmentation fault)", "exit code 3".
std::string describe_exit(int status);

}  // namespace mortise
