// Ranks that hand over prompts while they sample: each prompt goes to one rank that has asked, and none is asked for twice.
#include "train/sampling/rank_handover.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <mutex>
#include <set>
#include <string>
#include <vector>

#include "support/thread_ranks.h"

namespace mortise {
namespace {

using test::on_ranks;
constexpr std::chrono::milliseconds kNoPause{0};

TEST(RankHandover, ARankWithPromptsAnswersOneThatAsks) {
  on_ranks(2, [](Communicator& ranks) {
    RankHandover handover(ranks, "rewards", kNoPause);
    if (ranks.rank() == 1) {
      ASSERT_OK_AND_ASSIGN(const std::optional<std::string> none, handover.ask(false));
      EXPECT_FALSE(none);
      ASSERT_OK_AND_ASSIGN(const std::optional<std::string> not_yet, handover.ask(true));
      EXPECT_FALSE(not_yet);
    } else {
      ASSERT_OK_AND_ASSIGN(const bool before, handover.is_asked(false));
      EXPECT_FALSE(before) << "it has nothing to give, so it does not look";
    }
    ASSERT_OK(ranks.barrier("test"));
    if (ranks.rank() == 0) {
      ASSERT_OK_AND_ASSIGN(const bool is_asked, handover.is_asked(true));
      ASSERT_TRUE(is_asked);
      ASSERT_OK(handover.answer("prompt 3"));
      ASSERT_OK_AND_ASSIGN(const bool again, handover.is_asked(true));
      EXPECT_FALSE(again) << "one answer for a request";
    }
    ASSERT_OK(ranks.barrier("test"));
    if (ranks.rank() == 1) {
      ASSERT_OK_AND_ASSIGN(const std::optional<std::string> rows, handover.ask(false));
      EXPECT_EQ(rows, "prompt 3") << "although its workers may be busy by now";
      ASSERT_OK_AND_ASSIGN(const std::optional<std::string> more, handover.ask(true));
      EXPECT_FALSE(more);
    }
    ASSERT_OK(ranks.barrier("test"));
    ASSERT_OK(handover.close());
  });
}

TEST(RankHandover, ARankDoesNotAnswerItself) {
  on_ranks(2, [](Communicator& ranks) {
    RankHandover handover(ranks, "rewards", kNoPause);
    if (ranks.rank() == 1) {
      ASSERT_OK(handover.ask(true));  // its workers are free, and then busy with more than they can take
      ASSERT_OK_AND_ASSIGN(const bool by_itself, handover.is_asked(true));
      EXPECT_FALSE(by_itself);
    }
    ASSERT_OK(ranks.barrier("test"));
    if (ranks.rank() == 0) ASSERT_OK(handover.ask(true));
    ASSERT_OK(ranks.barrier("test"));
    if (ranks.rank() == 1) {
      ASSERT_OK_AND_ASSIGN(const bool by_other, handover.is_asked(true));
      EXPECT_TRUE(by_other);
      ASSERT_OK(handover.answer(""));
    }
    ASSERT_OK(ranks.barrier("test"));
    if (ranks.rank() == 0) {
      ASSERT_OK_AND_ASSIGN(const std::optional<std::string> none, handover.ask(true));
      EXPECT_FALSE(none) << "the other one had nothing left";
      ASSERT_OK(handover.ask(true));  // a new request, which stays open
    }
    ASSERT_OK(ranks.barrier("test"));
    ASSERT_OK(handover.close());
  });
}

// All at once: ranks with prompts, and ranks that ask until all prompts have arrived.
TEST(RankHandover, EachPromptArrivesOnce) {
  constexpr int kRanks = 4, kPrompts = 60;
  for (const auto pause : {kNoPause, std::chrono::milliseconds(1)}) {
    std::mutex mutex;
    std::multiset<std::string> arrived;
    std::atomic<int> num_arrived = 0;
    test::MeetingPoint point(kRanks);
    std::vector<std::thread> threads;
    for (int rank = 0; rank < kRanks; ++rank) {
      threads.emplace_back([&, rank] {
        test::ThreadRank ranks(point, rank, kRanks);
        for (int round = 0; round < 2; ++round) {  // counters begin again
          RankHandover handover(ranks, "rewards", pause);
          std::vector<std::string> own;
          for (int i = 0; rank < 2 && i < kPrompts / 2; ++i)
            own.push_back(std::to_string(round) + "/" + std::to_string(rank * kPrompts + i));
          while (num_arrived < (round + 1) * kPrompts) {
            while (handover.is_asked(!own.empty()).value()) {
              EXPECT_OK(handover.answer(own.empty() ? "" : own.back()));
              if (!own.empty()) own.pop_back();
            }
            const std::optional<std::string> rows = handover.ask(rank >= 2).value();
            if (!rows) {
              std::this_thread::sleep_for(std::chrono::microseconds(100));
              continue;
            }
            const std::lock_guard lock(mutex);
            arrived.insert(*rows);
            ++num_arrived;
          }
          EXPECT_OK(ranks.barrier("test"));
          EXPECT_OK(handover.close());
          EXPECT_OK(ranks.barrier("test"));
        }
      });
    }
    for (std::thread& thread : threads) thread.join();
    EXPECT_EQ(arrived.size(), size_t{2 * kPrompts});
    EXPECT_EQ(std::set<std::string>(arrived.begin(), arrived.end()).size(), arrived.size());
    EXPECT_EQ(point.num_left(), 0U) << "counters and notes are forgotten";
  }
}

}  // namespace
}  // namespace mortise
