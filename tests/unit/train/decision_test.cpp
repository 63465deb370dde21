// Decisions of ranks: the main rank's word and any rank's word reach all, and a rank that differs is named.
#include "train/loop/decision.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "support/thread_ranks.h"

namespace mortise {
namespace {

using test::on_ranks;

TEST(Decision, TheMainRankWorksAndAllHaveItsResult) {
  std::atomic<int> num_calls = 0;
  on_ranks(3, [&](Communicator& ranks) {
    const auto decided = on_main_rank(ranks, "test", [&]() -> Result<std::string> {
      ++num_calls;
      return std::string("a folder");
    });
    ASSERT_TRUE(decided.ok());
    EXPECT_EQ(*decided, "a folder");
    const auto failed = do_on_main_rank(ranks, "test", [&]() -> Result<> {
      ++num_calls;
      return Error{ErrorKind::kDisk, "the disk is full", "runs/a", "free some space"};
    });
    ASSERT_FALSE(failed.ok());
    EXPECT_EQ(failed.error().kind, ErrorKind::kDisk);
    EXPECT_EQ(failed.error().to_string(), "runs/a: the disk is full; free some space");
  });
  EXPECT_EQ(num_calls, 2);
}

TEST(Decision, AnyRankCanAskForAStop) {
  for (int asking = -1; asking < 3; ++asking) {
    on_ranks(3, [&](Communicator& ranks) {
      const auto stops = on_any_rank(ranks, "test", ranks.rank() == asking);
      ASSERT_TRUE(stops.ok());
      EXPECT_EQ(*stops, asking >= 0);
    });
  }
}

TEST(Decision, RanksThatDifferFromMostAreNamed) {
  const auto error_of = [](std::vector<std::string> bytes) {
    std::vector<std::string> texts(bytes.size());
    on_ranks(static_cast<int>(bytes.size()), [&](Communicator& ranks) {
      const auto rank = static_cast<size_t>(ranks.rank());
      const auto same =
          check_same_on_ranks(ranks, "test", bytes[rank], {ErrorKind::kRankFailure, "the weights", "step 3", ""});
      texts[rank] = same.ok() ? "" : same.error().to_string();
    });
    for (const std::string& text : texts) EXPECT_EQ(text, texts[0]);
    return texts[0];
  };
  EXPECT_EQ(error_of({"a", "a", "a"}), "");
  EXPECT_EQ(error_of({"b", "a", "a"}), "step 3: the weights of rank 0 differ from those of the other ranks");
  EXPECT_EQ(error_of({"a", "b", "a", "c"}),
            "step 3: the weights of ranks 1 and 3 differ from those of the other ranks");
  EXPECT_EQ(error_of({"a", "b"}), "step 3: the weights of rank 1 differ from those of the other ranks");
}

// Ranks with the same part have the same numbers, and nothing is known of others.
TEST(Decision, RanksAreComparedWithThoseOfTheSamePart) {
  const auto error_of = [](const std::vector<std::string>& all, size_t step) {
    const Result<> same = check_same(all, {ErrorKind::kRankFailure, "the weights", "step 3", ""}, step);
    return same.ok() ? std::string() : same.error().what;
  };
  EXPECT_EQ(error_of({"a", "b", "a", "b"}, 2), "");
  EXPECT_EQ(error_of({"a", "b"}, 2), "") << "each has a part that no other rank has";
  EXPECT_EQ(error_of({"a", "b", "c", "b", "a", "x"}, 2),
            "the weights of ranks 2 and 5 differ from those of the other ranks");
  EXPECT_EQ(error_of({"a", "b", "a", "c"}, 2), "the weights of rank 3 differ from those of the other ranks");
}

}  // namespace
}  // namespace mortise
