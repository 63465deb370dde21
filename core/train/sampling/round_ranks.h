// RoundRanks: the ranks of the run, as those that sample and score together.
//
// With trainer.mode "one_step_off" and "async" a thread of each rank samples while the policy learns. Its messages go
// through a group of their own, because those of learning have another order. A round that fails on one rank must then
// fail on all: every rank still finishes, logs and saves the step that learns. So each message says whether its sender
// has failed, and each round ends with one more message. Ranks that sample look once a second whether one has failed.
// Thread rule: one thread at a time.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "dist/communicator.h"

namespace mortise {

class RoundRanks {
 public:
  // Borrows it. Ranks that sample in turn with updates use it as it is.
  explicit RoundRanks(Communicator& ranks) : ranks_(&ranks) {}

  // From now on there are rounds next to updates. A collective.
  Result<> use_side_group();

  // Every rank's bytes, in rank order, on every rank. Or the Error of a rank whose round has failed. The rank calls
  // `meanwhile` until all have come.
  Result<std::vector<std::string>> exchange(const std::string& bytes, std::string_view stage,
                                            const Meanwhile& meanwhile = {});
  // Whether this rank is to go on: not if the run has failed, nor if the round of another rank has. Call it often.
  Result<> check(std::string_view stage);
  // What all ranks make of the end of a round: the Error of the first rank that failed. A rank that has lost the
  // others (its Error is a failure of ranks) has its own. Every rank calls it.
  Result<> finish_round(const Result<>& own);

  // This rank fails with this Error while the others still work: without rounds the run ends at once, and a round ends
  // when all are done.
  void fail(const Error& error);

  // For all but exchanges.
  [[nodiscard]] Communicator& group() const { return *ranks_; }
  [[nodiscard]] int rank() const { return ranks_->rank(); }
  [[nodiscard]] int size() const { return ranks_->size(); }

 private:
  // The counter of the ranks that have failed in this round.
  [[nodiscard]] std::string failures() const;
  void forget(const std::string& counter) const;

  Communicator* ranks_;
  bool has_rounds_ = false;
  std::optional<Error> heard_;  // that of a rank which has failed in this round: nobody waits for more messages
  bool gives_way_ = false;      // this rank has stopped because another one has failed
  int64_t num_rounds_ = 0;
  std::chrono::steady_clock::time_point next_look_;
};

}  // namespace mortise
