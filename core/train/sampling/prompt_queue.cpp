// Counts claims in counters that all ranks share.
#include "train/sampling/prompt_queue.h"

#include <ATen/ops/full.h>
#include <fmt/core.h>

#include <algorithm>
#include <numeric>
#include <utility>

#include "foundation/batch/rank_block.h"

namespace mortise {

PromptQueue::PromptQueue(Communicator& ranks, int64_t num_prompts, bool main_only, int64_t at_once, int group_size)
    : ranks_(&ranks), stage_("rollout"), group_size_(group_size), number_(ranks.next_number()) {
  const int num_groups = ranks.size() / group_size;
  int64_t most = 0;
  for (int group = 0; group < num_groups; ++group) {
    const RankBlock block = main_only ? main_block(num_prompts, group) : rank_block(num_prompts, group, num_groups);
    std::vector<int64_t> prompts(static_cast<size_t>(block.size()));
    std::iota(prompts.begin(), prompts.end(), block.begin);
    blocks_.push_back({std::move(prompts), block.size()});
    most = std::max(most, block.size());
  }
  is_shared_ = !main_only && num_groups > 1 && most > std::max<int64_t>(1, at_once);
}

PromptQueue::PromptQueue(Communicator& ranks, std::vector<std::vector<int64_t>> lists, const char* stage)
    : ranks_(&ranks), stage_(stage), group_size_(1), number_(ranks.next_number()) {
  for (std::vector<int64_t>& list : lists) {
    const int64_t size = std::ssize(list);
    is_shared_ = is_shared_ || (size > 0 && lists.size() > 1);
    blocks_.push_back({std::move(list), size});
  }
}

std::string PromptQueue::counter(int group, const char* what) const {
  return fmt::format("{}/{}/{}/{}", stage_, number_, group, what);
}

// One of the prompts of a block, if there is one. Fronts and backs never meet: there are no more claims than prompts.
Result<bool> PromptQueue::claim(int group) {
  Block& block = blocks_[static_cast<size_t>(group)];
  const int64_t before = TRY(ranks_->add_to_counter(counter(group, "claims"), 1, stage_));
  block.left = std::ssize(block.prompts) - before - 1;
  return block.left >= 0;
}

Result<int64_t> PromptQueue::take() {
  Block& own = blocks_[static_cast<size_t>(group())];
  if (own.left > 0 && TRY(claim(group()))) return own.prompts[static_cast<size_t>(num_own_++)];
  while (true) {
    const auto most = std::ranges::max_element(blocks_, {}, &Block::left);
    if (most->left <= 0) return -1;
    const auto other = static_cast<int>(most - blocks_.begin());
    if (!TRY(claim(other))) continue;
    const int64_t back = TRY(ranks_->add_to_counter(counter(other, "back"), 1, stage_));
    return most->prompts[most->prompts.size() - 1 - static_cast<size_t>(back)];
  }
}

Result<std::optional<int64_t>> PromptQueue::next() {
  int64_t prompt = -1;
  if (!is_shared_) {
    Block& own = blocks_[static_cast<size_t>(group())];
    if (own.left > 0) prompt = own.prompts[own.prompts.size() - static_cast<size_t>(own.left--)];
  } else {
    const bool takes = ranks_->rank() % group_size_ == 0;
    if (takes) prompt = TRY(take());
    if (group_size_ > 1) {
      const at::Tensor told = at::full({1}, prompt, at::kLong);
      Communicator* const group_ranks = TRY(ranks_->neighbours(group_size_));
      TRY(group_ranks->broadcast(told, 0, stage_));
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
    for (const char* what : {"claims", "back"}) TRY(ranks_->forget_counter(counter(group, what), stage_));
  }
  return {};
}

}  // namespace mortise
