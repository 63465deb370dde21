// Which process scores which prompts of a batch, if several share it. Pure functions.
//
// Rewards in workers begin with a prompt on the process that sampled it, while others are still being sampled. If its
// workers are busy and one of another process is free, it hands the prompt over. Prompts that no worker has begun when all
// are sampled go into a queue: each process takes its own, and then those of others. Rewards that do not run in workers
// get what nobody has scored, dealt out by the number of tokens.
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

// Processes hand over prompts of one batch to each other for one reward while they sample. A process asks for a prompt, and
// a process whose prompts wait answers. An answer that nobody takes is lost. All processes agree afterwards on who scored
// which prompt. Calls that find nothing cost little: an implementation looks only now and then.
class PromptHandover {
 public:
  static constexpr size_t kMaxBytes = size_t{4} << 20;  // an answer has at most so many
  virtual ~PromptHandover() = default;
  // Is this process to answer another one now? `has_prompts`: it has some that wait.
  virtual Result<bool> is_asked(bool has_prompts) = 0;
  // After is_asked(): the rows of a prompt; empty: there is none for it.
  virtual Result<> answer(const std::string& rows) = 0;
  // The answer, once there is one with rows. `wants`: asks if it has not asked yet.
  virtual Result<std::optional<std::string>> ask(bool wants) = 0;
  // When no process asks or answers any more.
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
  // Every rank makes the call. Null: ranks hand over nothing while they sample.
  std::function<std::unique_ptr<PromptHandover>()> hand_over;
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

// How ranks take rows from a queue of prompts: few enough at a time that each comes back for more, at most `max_rows`.
struct ClaimSize {
  int64_t parts = 1;    // a prompt has so many, which are claimed one by one
  int64_t prompts = 1;  // so many are claimed together, if they have no parts
};
// `num_rows`: in the queue, n of each prompt. `may_cut`: a reward takes single rows of a prompt.
ClaimSize claim_size(int64_t num_rows, int64_t n, int num_ranks, int64_t max_rows, bool may_cut);
// Each prompt of the lists as its parts, in order; and the rows of a part.
std::vector<std::vector<int64_t>> cut_prompts(const std::vector<std::vector<int64_t>>& lists, int64_t parts);
std::vector<int64_t> rows_of_part(int64_t part, int64_t parts, int64_t n);

// The rows of a prompt, as far as rewards read them; and about how many bytes they are, never fewer than they are.
std::string encode_prompt_rows(const SampleBatch& samples, int64_t prompt);
size_t most_bytes_of_rows(const SampleBatch& samples, int64_t prompt);
// Puts them into `samples`, which has room for all, and returns the prompt.
Result<int64_t> decode_prompt_rows(std::string_view bytes, SampleBatch& samples);

}  // namespace mortise
