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

// Its counters fail if `fails`, as when their store is gone. The side group is this group itself.
class WithoutCounters : public test::ThreadRank {
 public:
  WithoutCounters(test::MeetingPoint& point, int rank, bool fails) : ThreadRank(point, rank, 2), fails_(fails) {}

  Result<Communicator*> side_group() override { return this; }
  Result<int64_t> add_to_counter(const std::string& counter, int64_t amount, std::string_view stage) override {
    if (fails_) return lost();
    return ThreadRank::add_to_counter(counter, amount, stage);
  }
  Result<> forget_counter(const std::string& counter, std::string_view stage) override {
    forgotten.push_back(counter);
    return ThreadRank::forget_counter(counter, stage);
  }
  Result<std::vector<std::string>> exchange(const std::string& bytes, std::string_view stage,
                                            const Meanwhile& meanwhile) override {
    if (is_cut_off) return lost();
    return ThreadRank::exchange(bytes, stage, meanwhile);
  }

  bool is_cut_off = false;
  std::vector<std::string> forgotten;

 private:
  static Error lost() { return {ErrorKind::kRankFailure, "the store cannot be reached", {}, {}}; }
  bool fails_;
};

// Calls act(group, ranks) on each of two ranks, in a thread of its own. `fails`: as WithoutCounters.
template <class Act>
void on_two_ranks(bool fails, const Act& act) {
  test::MeetingPoint point(2);
  std::vector<std::thread> threads;
  for (int rank = 0; rank < 2; ++rank)
    threads.emplace_back([&, rank] {
      WithoutCounters group(point, rank, fails);
      RoundRanks ranks(group);
      ASSERT_OK(ranks.use_side_group());
      act(group, ranks);
    });
  for (std::thread& thread : threads) thread.join();
}

// The ranks' error is that of the rank which failed, and not that its counter was out of reach.
TEST(RoundRanks, AnErrorIsToldWithoutTheCounter) {
  std::vector<Result<>> ends(2);
  on_two_ranks(/*fails=*/true, [&](WithoutCounters& group, RoundRanks& ranks) {
    const auto rank = static_cast<size_t>(group.rank());
    ends[rank] = ranks.finish_round(rank == 1 ? Result<>(kOutOfMemory) : Result<>());
  });
  ASSERT_FALSE(ends[0].ok());
  ASSERT_FALSE(ends[1].ok());
  EXPECT_EQ(ends[0].error().what, "rank 1: no memory is left");
  EXPECT_EQ(ends[1].error().what, "no memory is left");
}

TEST(RoundRanks, ARankAloneHasItsOwnError) {
  test::MeetingPoint point(2);
  WithoutCounters group(point, 1, /*fails=*/true);
  group.is_cut_off = true;
  RoundRanks ranks(group);
  ASSERT_OK(ranks.use_side_group());
  const Result<> failed = ranks.finish_round(kOutOfMemory);
  ASSERT_FALSE(failed.ok());
  EXPECT_EQ(failed.error().what, "no memory is left");
  const Result<> good = ranks.finish_round({});
  ASSERT_FALSE(good.ok());
  EXPECT_EQ(good.error().what, "the store cannot be reached");
}

TEST(RoundRanks, RankZeroForgetsTheCounterOfEachRound) {
  std::vector<std::vector<std::string>> forgotten(2);
  on_two_ranks(/*fails=*/false, [&](WithoutCounters& group, RoundRanks& ranks) {
    for (int round = 0; round < 2; ++round) EXPECT_OK(ranks.finish_round({}));
    forgotten[static_cast<size_t>(group.rank())] = group.forgotten;
  });
  EXPECT_EQ(forgotten[0], (std::vector<std::string>{"rounds/0/failures", "rounds/1/failures"}));
  EXPECT_TRUE(forgotten[1].empty());
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
