// Counts claims in counters that all ranks share.
#include "train/sampling/prompt_queue.h"

#include <ATen/ops/full.h>
#include <fmt/core.h>

#include <algorithm>

namespace mortise {

namespace {

constexpr std::string_view kQueueStage = "rollout";

}  // namespace

PromptQueue::PromptQueue(Communicator& ranks, int64_t num_prompts, bool main_only, int64_t at_once, int group_size)
    : ranks_(&ranks), group_size_(group_size), number_(ranks.next_number()) {
  const int num_groups = ranks.size() / group_size;
  int64_t most = 0;
  for (int group = 0; group < num_groups; ++group) {
    const RankBlock block = main_only ? main_block(num_prompts, group) : rank_block(num_prompts, group, num_groups);
    blocks_.push_back({block, block.size()});
    most = std::max(most, block.size());
  }
  is_shared_ = !main_only && num_groups > 1 && most > std::max<int64_t>(1, at_once);
}

std::string PromptQueue::counter(int group, const char* what) const {
  return fmt::format("rollout/{}/{}/{}", number_, group, what);
}

// One of the prompts of a block, if there is one. Fronts and backs never meet: there are no more claims than prompts.
Result<bool> PromptQueue::claim(int group) {
  Block& block = blocks_[static_cast<size_t>(group)];
  const int64_t before = TRY(ranks_->add_to_counter(counter(group, "claims"), 1, kQueueStage));
  block.left = block.prompts.size() - before - 1;
  return before < block.prompts.size();
}

Result<int64_t> PromptQueue::take() {
  Block& own = blocks_[static_cast<size_t>(group())];
  if (own.left > 0 && TRY(claim(group()))) return own.prompts.begin + num_own_++;
  while (true) {
    const auto most = std::ranges::max_element(blocks_, {}, &Block::left);
    if (most->left <= 0) return -1;
    const auto other = static_cast<int>(most - blocks_.begin());
    if (!TRY(claim(other))) continue;
    const int64_t back = TRY(ranks_->add_to_counter(counter(other, "back"), 1, kQueueStage));
    return most->prompts.end - 1 - back;
  }
}

Result<std::optional<int64_t>> PromptQueue::next() {
  int64_t prompt = -1;
  if (!is_shared_) {
    Block& own = blocks_[static_cast<size_t>(group())];
    if (own.left > 0) prompt = own.prompts.end - own.left--;
  } else {
    const bool takes = ranks_->rank() % group_size_ == 0;
    if (takes) prompt = TRY(take());
    if (group_size_ > 1) {
      const at::Tensor told = at::full({1}, prompt, at::kLong);
      Communicator* const group_ranks = TRY(ranks_->neighbours(group_size_));
      TRY(group_ranks->broadcast(told, 0, kQueueStage));
      prompt = told.item<int64_t>();
    }
  }
  if (prompt < 0) return std::optional<int64_t>();
  taken_.push_back(prompt);
  return std::optional(prompt);
}

Result<> PromptQueue::close() {
  if (!is_shared_ || !ranks_->is_main()) return {};
  for (int group = 0; group < static_cast<int>(blocks_.size()); ++group) {
    for (const char* what : {"claims", "back"}) TRY(ranks_->forget_counter(counter(group, what), kQueueStage));
  }
  return {};
}

}  // namespace mortise
