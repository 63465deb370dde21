// PromptQueue: the prompts of a rollout, which ranks take one after another.
//
// Each rank has a block of neighbouring prompts, and takes them from its front. A rank that has none left takes those of
// others, from the back of the block in which most are left. No rank then waits while another still has prompts that it
// has not begun. If every rank can begin its whole block at once, nobody takes from others, and no message is sent.
// Ranks that sample the same rows together (rollout.tensor_model_parallel_size) take the same prompts: their first rank
// takes, and tells the others.
// Rewards use it with lists that the ranks have agreed on.
// Cost: a message to the store of the ranks per prompt, and one or two more per prompt of another rank.
// Thread rule: one thread.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "dist/communicator.h"
#include "experience/reward/shared_prompts.h"

namespace mortise {

class PromptQueue : public PromptClaims {
 public:
  // Every rank makes it with the same numbers. `at_once`: prompts that a rank samples at the same time. `main_only`: rank
  // 0 has all prompts. `group_size`: neighbours that take together; their calls of next() are then collectives.
  PromptQueue(Communicator& ranks, int64_t num_prompts, bool main_only, int64_t at_once, int group_size = 1);
  // By rank: the prompts that it takes first. Every rank makes it with the same lists. `stage`: a literal, for errors.
  PromptQueue(Communicator& ranks, std::vector<std::vector<int64_t>> lists, const char* stage);

  Result<std::optional<int64_t>> next() override;
  // Can ranks take from others?
  [[nodiscard]] bool is_shared() const { return is_shared_; }
  // What this rank took, in order: the same as the others of its group.
  [[nodiscard]] std::span<const int64_t> taken() const { return taken_; }
  Result<> close() override;

 private:
  struct Block {
    std::vector<int64_t> prompts;
    int64_t left = 0;  // as far as this rank knows, at most
  };
  Result<bool> claim(int group);
  // The prompt that this rank takes from the shared queue; -1: none is left.
  Result<int64_t> take();
  [[nodiscard]] std::string counter(int group, const char* what) const;
  [[nodiscard]] int group() const { return ranks_->rank() / group_size_; }

  Communicator* ranks_;
  const char* stage_;
  int group_size_;
  std::vector<Block> blocks_;  // by group
  bool is_shared_ = false;
  int64_t number_;
  int64_t num_own_ = 0;
  std::vector<int64_t> taken_;
};

}  // namespace mortise
