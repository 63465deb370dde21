// The workers of one reward function: as many as may score at once and a spare, all alike and all loaded, so that one
// that dies is replaced at once while its successor is being made.
//
// Threading: one thread at a time.
#pragma once

#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "plugin/worker/launcher.h"
#include "plugin/worker/messages.h"
#include "plugin/worker/shared_memory.h"

namespace mortise {

// One worker process, seen from the trainer.
struct Seat {
  int64_t id = 0;
  Channel channel;
  bool ready = false;       // its instance stands
  bool busy = false;        // it has a piece
  int64_t area_number = -1;  // the rows that it has mapped
  int64_t block = -1;        // the block of the arena that it has open
  int64_t state_count = 0;  // which of the reward's states it holds (RewardPool)
  SharedMemory output;
  OutputArea area;
};

struct WorkerEnd {
  std::string text;  // "signal 11 (Segmentation fault)"
  int signal = 0;    // 0: none
};

struct CrewOptions {
  int num_workers = 1;
  std::filesystem::path program;
  std::filesystem::path bubblewrap;  // empty: not used
  std::string without;               // why it is not, for the log; may be empty
};

class Crew {
 public:
  // Starts the keeper and one worker, and returns when that is ready, so that a reward that cannot be created is an
  // error here. refill() starts the others.
  static Result<std::unique_ptr<Crew>> start(const LoadMessage& load, const CrewOptions& options);

  [[nodiscard]] const ReadyMessage& ready() const { return ready_; }
  // What its workers may do, for the log.
  [[nodiscard]] std::string limits_text() const;
  [[nodiscard]] int num_workers() const { return options_.num_workers; }
  // A reward with state, or one that gets all rows at once, lives in one worker; call before refill().
  void use_one_worker();

  [[nodiscard]] std::vector<std::unique_ptr<Seat>>& seats() { return seats_; }
  // A ready one without work, if fewer than num_workers() are busy; else null.
  Seat* take_idle();
  // As take_idle, waiting for one that is being made.
  Result<Seat*> wait_idle(int timeout_ms);

  // Waits for news of any worker or of the keeper. Replaces the keeper when it has ended.
  Result<> wait(int timeout_ms);
  // A message that says that a new worker is ready, or cannot be. An error: no instance can be made any more.
  Result<> take_ready(Seat& seat, const Frame& frame);
  [[nodiscard]] bool has_ended(const Seat& seat) const;
  // Ends the process if it still runs and says how it ended. Its messages can still be read; replace() it then.
  WorkerEnd end(Seat& seat);
  // Forgets it and starts a successor.
  Result<> replace(Seat& seat);
  // A new keeper with new workers, after the old one has ended; three times at most.
  Result<> restart();
  // Starts the workers that are not there yet, or that an earlier error left unmade.
  Result<> refill();

 private:
  Crew() = default;
  Result<> start_keeper(int num_seats);
  Result<> add_seat();
  WorkerEnd kill_and_ask(Seat& seat);

  LoadMessage load_;
  CrewOptions options_;
  std::unique_ptr<Keeper> keeper_;
  std::vector<std::unique_ptr<Seat>> seats_;
  ReadyMessage ready_;
  int64_t next_id_ = 1;
  int num_restarts_ = 0;
  int num_stillborn_ = 0;  // workers in a row that ended before they were ready
  std::string last_end_;   // how the last one ended
};

// "signal 11 (Segmentation fault)", "exit code 3".
std::string describe_exit(int status);

}  // namespace mortise
