// PromptHandover of threads that stand for ranks.
#pragma once

#include <algorithm>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>

#include "experience/reward/shared_prompts.h"

namespace mortise::test {

class SharedHandover {
 public:
  // For ScoreRanks::hand_over of one rank. The n-th ones of all ranks belong together.
  std::unique_ptr<PromptHandover> join(int rank) {
    const std::lock_guard lock(mutex_);
    const int64_t number = num_joined_[rank]++;
    return std::make_unique<Place>(*this, boards_[number], rank);
  }

 private:
  struct Board {
    std::deque<int> asking;  // ranks
    std::map<int, std::string> answers;
  };
  class Place : public PromptHandover {
   public:
    Place(SharedHandover& all, Board& board, int rank) : mutex_(all.mutex_), board_(board), rank_(rank) {}
    Result<bool> is_asked(bool has_prompts) override {
      const std::lock_guard lock(mutex_);
      std::erase(board_.asking, rank_);
      return has_prompts && !board_.asking.empty();
    }
    Result<> answer(const std::string& rows) override {
      const std::lock_guard lock(mutex_);
      if (board_.asking.empty()) return {};  // another rank was faster, and the prompt is lost
      board_.answers[board_.asking.front()] = rows;
      board_.asking.pop_front();
      return {};
    }
    Result<std::optional<std::string>> ask(bool wants) override {
      const std::lock_guard lock(mutex_);
      if (auto answer = board_.answers.extract(rank_)) return std::optional(std::move(answer.mapped()));
      if (wants && std::ranges::find(board_.asking, rank_) == board_.asking.end()) board_.asking.push_back(rank_);
      return std::optional<std::string>();
    }
    Result<> close() override { return {}; }

   private:
    std::mutex& mutex_;
    Board& board_;
    int rank_;
  };

  std::mutex mutex_;
  std::map<int, int64_t> num_joined_;  // by rank
  std::map<int64_t, Board> boards_;
};

}  // namespace mortise::test
