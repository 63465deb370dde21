// The queue from which ranks take prompts: each prompt once, and those of a rank that is busy go to the others.
#include "train/sampling/prompt_queue.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <mutex>
#include <set>

#include "support/thread_ranks.h"

namespace mortise {
namespace {

using test::on_ranks;

std::vector<int64_t> take_all(PromptQueue& queue) {
  while (queue.next().value()) {
  }
  return {queue.taken().begin(), queue.taken().end()};
}

TEST(PromptQueue, OthersTakeThePromptsOfABusyRank) {
  for (const int64_t num_prompts : {3, 10, 31}) {
    std::vector<std::vector<int64_t>> taken(3);
    on_ranks(3, [&](Communicator& ranks) {
      for (int round = 0; round < 2; ++round) {  // counters begin again
        PromptQueue queue(ranks, num_prompts, false, 0);
        const auto rank = static_cast<size_t>(ranks.rank());
        if (rank == 0) {
          ASSERT_TRUE(queue.next().value().has_value());
        }
        ASSERT_OK(ranks.barrier("test"));
        if (rank > 0) take_all(queue);
        taken[rank] = {queue.taken().begin(), queue.taken().end()};
        ASSERT_OK(ranks.barrier("test"));
        ASSERT_OK(queue.close());
        ASSERT_OK(ranks.barrier("test"));
      }
    });
    std::multiset<int64_t> all;
    for (const std::vector<int64_t>& one : taken) all.insert(one.begin(), one.end());
    EXPECT_EQ(all.size(), static_cast<size_t>(num_prompts));
    EXPECT_EQ(std::set<int64_t>(all.begin(), all.end()).size(), all.size());
    EXPECT_EQ(*all.begin(), 0);
    EXPECT_EQ(*all.rbegin(), num_prompts - 1);
    EXPECT_EQ(taken[0], std::vector<int64_t>{0});
  }
}

TEST(PromptQueue, RanksKeepTheirBlocksIfAllFitAtOnce) {
  std::vector<std::vector<int64_t>> taken(3);
  const size_t num_sent = on_ranks(3, [&](Communicator& ranks) {
    PromptQueue queue(ranks, 8, false, 3);
    EXPECT_FALSE(queue.is_shared());
    taken[static_cast<size_t>(ranks.rank())] = take_all(queue);
    ASSERT_OK(queue.close());
  });
  EXPECT_EQ(num_sent, 0U);
  EXPECT_EQ(taken, (std::vector<std::vector<int64_t>>{{0, 1}, {2, 3, 4}, {5, 6, 7}}));
}

// Ranks that sample together get the same prompts in the same order, whoever asks first.
TEST(PromptQueue, RanksOfAGroupTakeTheSamePrompts) {
  for (const int64_t at_once : {1, 100}) {
    std::vector<std::vector<int64_t>> taken(4);
    on_ranks(4, [&](Communicator& ranks) {
      PromptQueue queue(ranks, 9, false, at_once, 2);
      EXPECT_EQ(queue.is_shared(), at_once == 1);
      taken[static_cast<size_t>(ranks.rank())] = take_all(queue);
      ASSERT_OK(ranks.barrier("test"));
      ASSERT_OK(queue.close());
    });
    EXPECT_EQ(taken[0], taken[1]);
    EXPECT_EQ(taken[2], taken[3]);
    std::vector<int64_t> all = taken[0];
    all.insert(all.end(), taken[2].begin(), taken[2].end());
    std::ranges::sort(all);
    EXPECT_EQ(all, (std::vector<int64_t>{0, 1, 2, 3, 4, 5, 6, 7, 8}));
  }
}

TEST(PromptQueue, RankZeroMayHaveAllPrompts) {
  on_ranks(2, [&](Communicator& ranks) {
    PromptQueue queue(ranks, 5, true, 1);
    EXPECT_EQ(take_all(queue).size(), ranks.is_main() ? 5U : 0U);
  });
}

}  // namespace
}  // namespace mortise
