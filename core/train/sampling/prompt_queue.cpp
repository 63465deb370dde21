// Counts claims in counters that all ranks share.
#include "train/sampling/prompt_queue.h"

#include <fmt/core.h>

#include <algorithm>

namespace mortise {

namespace {

constexpr std::string_view kQueueStage = "rollout";

}  // namespace

PromptQueue::PromptQueue(Communicator& ranks, int64_t num_prompts, bool main_only, int64_t at_once)
    : ranks_(&ranks), number_(ranks.next_number()) {
  int64_t most = 0;
  for (int rank = 0; rank < ranks.size(); ++rank) {
    const RankBlock block = main_only ? main_block(num_prompts, rank) : rank_block(num_prompts, rank, ranks.size());
    blocks_.push_back({block, block.size()});
    most = std::max(most, block.size());
  }
  is_shared_ = !main_only && ranks.size() > 1 && most > std::max<int64_t>(1, at_once);
}

std::string PromptQueue::counter(int rank, const char* what) const {
  return fmt::format("rollout/{}/{}/{}", number_, rank, what);
}

// One of the prompts of a block, if there is one. Fronts and backs never meet: there are no more claims than prompts.
Result<bool> PromptQueue::claim(int rank) {
  Block& block = blocks_[static_cast<size_t>(rank)];
  const int64_t before = TRY(ranks_->add_to_counter(counter(rank, "claims"), 1, kQueueStage));
  block.left = block.prompts.size() - before - 1;
  return before < block.prompts.size();
}

Result<std::optional<int64_t>> PromptQueue::next() {
  Block& own = blocks_[static_cast<size_t>(ranks_->rank())];
  if (own.left > 0) {
    if (!is_shared_) --own.left;
    if (!is_shared_ || TRY(claim(ranks_->rank()))) {
      taken_.push_back(own.prompts.begin + num_own_++);
      return std::optional(taken_.back());
    }
  }
  while (is_shared_) {
    const auto most = std::ranges::max_element(blocks_, {}, &Block::left);
    if (most->left <= 0) break;
    const auto rank = static_cast<int>(most - blocks_.begin());
    if (!TRY(claim(rank))) continue;
    const int64_t back = TRY(ranks_->add_to_counter(counter(rank, "back"), 1, kQueueStage));
    taken_.push_back(most->prompts.end - 1 - back);
    return std::optional(taken_.back());
  }
  return std::optional<int64_t>();
}

Result<> PromptQueue::close() {
  if (!is_shared_ || !ranks_->is_main()) return {};
  for (int rank = 0; rank < ranks_->size(); ++rank) {
    for (const char* what : {"claims", "back"}) TRY(ranks_->forget_counter(counter(rank, what), kQueueStage));
  }
  return {};
}

}  // namespace mortise
