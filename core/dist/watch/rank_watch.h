// RankWatch: knows which ranks of a group live, and ends the waiting of this one when another has failed.
//
// Two threads. One talks to the store: each beat it writes this rank's state and reads those of all ranks and the
// verdict. It blocks if the process that serves the store is stopped. The other one therefore judges: what it finds
// (diagnosis.h) it proposes to the store, where the first proposal counts. If the store is gone, its own proposal
// counts. A verdict ends all waiting. If the process still runs `end_grace` after that, because its main thread is busy
// elsewhere, the judge ends it with exit code 7.
//
// A rank that lives may be late for a long time. The log of each rank that waits then names it, and its own log says
// where its threads are (WatchLimits::notice_s). If no rank is late and all wait, in one call or in different ones,
// every log says that, and where the threads are.
//
// Time counts only while this process runs: after a stop (SIGSTOP, a suspended machine) no rank is blamed for it.
// Thread rule: any thread.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "dist/watch/diagnosis.h"
#include "dist/watch/rank_state.h"
#include "dist/watch/rank_store.h"
#include "foundation/base/result.h"

namespace mortise {

struct WatchOptions {
  int rank = 0;
  int size = 1;
  int store_rank = 0;  // serves the store; -1: another program, or a file
  std::string store_address;
  std::vector<RankProcess> processes;  // every rank's process
  std::chrono::milliseconds beat{250};
  WatchLimits limits;
  std::chrono::milliseconds end_grace{20000};
  std::function<void(const Error&)> end_process;  // default: logs the Error and ends the process
};

// Keys of the store, with the values that must be there before a watch begins.
std::string state_key(int rank);
inline constexpr const char* kVerdictKey = "verdict";
inline constexpr const char* kNoVerdict = "none";

// One call that another thread completes. finish() may come after the watch's end.
class Completion {
 public:
  virtual ~Completion() = default;
  virtual void finish() = 0;
};

class RankWatch {
 public:
  RankWatch(std::unique_ptr<RankStore> store, WatchOptions options);
  ~RankWatch();
  RankWatch(const RankWatch&) = delete;
  RankWatch& operator=(const RankWatch&) = delete;

  void enter(std::string_view stage, int64_t step);

  // A call of this rank begins; an Error if the group has failed. is_collective: it counts in the order of calls.
  Result<> begin_call(std::string_view stage, bool is_collective);
  std::shared_ptr<Completion> new_completion();
  // Until it is finished, or the group has failed. `ranks`: those that the call concerns. `meanwhile`: as Meanwhile in
  // communicator.h.
  Result<> wait(const std::shared_ptr<Completion>& completion, std::string_view stage, const RankSet& ranks = {},
                const std::function<bool(int wait_ms)>& meanwhile = {});
  // The call failed with `text`: waits until the cause shows, and returns it.
  Error explain_failure(std::string_view stage, const std::string& text);

  [[nodiscard]] Result<> check(std::string_view stage) const;

  // This rank's own error. Returns when the store has it, at most after two seconds.
  void fail(const Error& error);
  // Returns when all ranks have called it. The rank that serves the store returns last.
  Result<> leave();

 private:
  struct Shared;  // outlives this object where a thread or a call still runs
  std::shared_ptr<Shared> shared_;
};

}  // namespace mortise
