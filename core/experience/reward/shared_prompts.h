// Which process scores which prompts of a batch, if several share it. Pure functions.
//
// Rewards in workers begin with a prompt on the process that sampled it, while others are still being sampled. Prompts
// that no worker has begun when all are sampled go into a queue: each process takes its own, and then those of others.
// Rewards that do not run in workers get what nobody has scored, dealt out by the number of tokens.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "foundation/base/result.h"
#include "foundation/batch/sample_batch.h"

namespace mortise {

// The prompts of all processes, which each of them takes one after another. Every prompt goes to one process.
class PromptClaims {
 public:
  virtual ~PromptClaims() = default;
  // The next prompt of this process; null if none is left.
  virtual Result<std::optional<int64_t>> next() = 0;
  // When all processes know that none is left.
  virtual Result<> close() = 0;
};

// The processes that share the scoring of each batch. This room does not know how they talk.
struct ScoreRanks {
  int rank = 0, size = 1;
  // Every rank's bytes, in rank order, on every rank.
  std::function<Result<std::vector<std::string>>(const std::string&)> exchange = [](const std::string& own) {
    return Result<std::vector<std::string>>(std::vector<std::string>{own});
  };
  // `lists`: what each rank takes first. Every rank makes the call, with the same lists.
  std::function<std::unique_ptr<PromptClaims>(std::vector<std::vector<int64_t>> lists)> share;
};

// The prompts of the batch that a process has, for one reward.
struct OwnPrompts {
  bool works_ahead = false;      // its reward runs in workers
  std::vector<int64_t> begun;    // the reward has their rows
  std::vector<int64_t> waiting;  // it does not have them yet
};
std::string encode_own_prompts(const OwnPrompts& own);
Result<OwnPrompts> decode_own_prompts(std::string_view bytes, size_t num_prompts);

// The tokens of each prompt's completions, and one more for each row.
std::vector<int64_t> loads_of_prompts(const SampleBatch& samples);

// By rank: the prompts that it begins with, of those that no reward has. Those that wait stay where they are, if the
// reward runs in workers everywhere; all others are dealt out, so that each rank has about the same load.
std::vector<std::vector<int64_t>> deal_prompts(std::span<const OwnPrompts> ranks, std::span<const int64_t> loads);

}  // namespace mortise
