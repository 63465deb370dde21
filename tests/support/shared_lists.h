// PromptClaims of threads that stand for ranks. Each takes its own list from the front, and then those of others from the
// back.
#pragma once

#include <algorithm>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <utility>
#include <vector>

#include "experience/reward/shared_prompts.h"

namespace mortise::test {

class SharedLists {
 public:
  // For ScoreRanks::share of one rank.
  std::unique_ptr<PromptClaims> share(int rank, std::vector<std::vector<int64_t>> lists) {
    const std::lock_guard lock(mutex_);
    const int64_t number = num_shared_[rank]++;
    lists_.try_emplace(number, std::move(lists));
    return std::make_unique<Claims>(*this, rank, number);
  }

 private:
  class Claims : public PromptClaims {
   public:
    Claims(SharedLists& all, int rank, int64_t number) : all_(&all), rank_(rank), number_(number) {}
    Result<std::optional<int64_t>> next() override { return all_->take(rank_, number_); }
    Result<> close() override { return {}; }

   private:
    SharedLists* all_;
    int rank_;
    int64_t number_;
  };
  std::optional<int64_t> take(int rank, int64_t number) {
    const std::lock_guard lock(mutex_);
    std::vector<std::vector<int64_t>>& lists = lists_.at(number);
    std::vector<int64_t>& own = lists[static_cast<size_t>(rank)];
    if (!own.empty()) {
      const int64_t prompt = own.front();
      own.erase(own.begin());
      return prompt;
    }
    std::vector<int64_t>& most = *std::ranges::max_element(lists, {}, &std::vector<int64_t>::size);
    if (most.empty()) return std::nullopt;
    const int64_t prompt = most.back();
    most.pop_back();
    return prompt;
  }

  std::mutex mutex_;
  std::map<int, int64_t> num_shared_;
  std::map<int64_t, std::vector<std::vector<int64_t>>> lists_;
};

}  // namespace mortise::test
