// A round that fails on one rank fails on all of them, wherever the others are.
#include "train/sampling/round_ranks.h"

#include <gtest/gtest.h>

#include "support/thread_ranks.h"

namespace mortise {
namespace {

using test::on_ranks;

const Error kOutOfMemory{ErrorKind::kPlugin, "no memory is left", "native@builtin", "lower rollout.max_num_seqs"};

// A round of so many exchanges, before one of which rank 1 fails. Its end on each rank.
std::vector<Result<>> ends_of_rounds(int num_exchanges, int failing_exchange) {
  std::vector<Result<>> ends(3);
  on_ranks(3, [&](Communicator& run) {
    RoundRanks ranks(run);
    ASSERT_OK(ranks.use_side_group());
    const auto round = [&](int failing) -> Result<> {
      for (int i = 0; i < num_exchanges; ++i) {
        if (i == failing && ranks.rank() == 1) return kOutOfMemory;
        const auto all = TRY(ranks.exchange(std::to_string(10 * i + ranks.rank()), "completions"));
        EXPECT_EQ(all, (std::vector<std::string>{std::to_string(10 * i), std::to_string(10 * i + 1),
                                                 std::to_string(10 * i + 2)}));
      }
      if (failing == num_exchanges && ranks.rank() == 1) return kOutOfMemory;
      return {};
    };
    ends[static_cast<size_t>(ranks.rank())] = ranks.finish_round(round(failing_exchange));
    EXPECT_OK(ranks.finish_round(round(-1)));  // the next one
  });
  return ends;
}

TEST(RoundRanks, AllFailWithOneOfThem) {
  for (const int failing : {0, 1, 2, 3}) {
    const std::vector<Result<>> ends = ends_of_rounds(3, failing);
    for (size_t rank = 0; rank < ends.size(); ++rank) {
      ASSERT_FALSE(ends[rank].ok()) << "rank " << rank << ", exchange " << failing;
      const Error& error = ends[rank].error();
      EXPECT_EQ(error.kind, ErrorKind::kPlugin);
      EXPECT_EQ(error.what, rank == 1 ? "no memory is left" : "rank 1: no memory is left");
      EXPECT_EQ(error.where, "native@builtin");
      EXPECT_EQ(error.next, "lower rollout.max_num_seqs");
    }
  }
}

TEST(RoundRanks, GoodRoundsEndWell) {
  for (const Result<>& end : ends_of_rounds(2, -1)) EXPECT_OK(end);
}

// Ranks that sample for long stop soon after another one has failed, and the next round begins without it.
TEST(RoundRanks, RanksThatSampleStopWhenAnotherFails) {
  on_ranks(3, [](Communicator& run) {
    RoundRanks ranks(run);
    ASSERT_OK(ranks.use_side_group());
    const auto sample = [&]() -> Result<> {
      if (ranks.rank() == 1) return kOutOfMemory;
      while (true) {
        TRY(ranks.check("rollout"));
        std::this_thread::sleep_for(std::chrono::milliseconds(10));
      }
    };
    for (int round = 0; round < 2; ++round) {
      const Result<> end = ranks.finish_round(sample());
      ASSERT_FALSE(end.ok());
      EXPECT_EQ(end.error().what, ranks.rank() == 1 ? "no memory is left" : "rank 1: no memory is left");
      EXPECT_OK(ranks.check("rollout"));  // in the next round
      EXPECT_OK(ranks.finish_round({}));
    }
  });
}

// All ranks judge rewards alike. The error is theirs, not one rank's.
TEST(RoundRanks, AnErrorOfAllRanksNamesNone) {
  on_ranks(2, [&](Communicator& run) {
    RoundRanks ranks(run);
    ASSERT_OK(ranks.use_side_group());
    const Result<> end = ranks.finish_round(kOutOfMemory);
    ASSERT_FALSE(end.ok());
    EXPECT_EQ(end.error().what, "no memory is left");
  });
}

}  // namespace
}  // namespace mortise
