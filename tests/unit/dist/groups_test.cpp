// Every collective on real Gloo groups of 1 to 4 ranks, each a thread of this program with a store in memory.
#include <ATen/ops/cat.h>
#include <ATen/ops/full.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>
#include <gtest/gtest.h>
#include <sched.h>

#include <array>
#include <chrono>
#include <filesystem>
#include <string>
#include <thread>
#include <vector>

#include "dist/gloo/c10d_store.h"
#include "dist/nccl/carry_device.h"
#include "dist/nccl/nccl_module.h"
#include "dist/watch/rank_watch.h"
#include "support/collectives.h"
#include "support/rank_group.h"

namespace mortise {
namespace {

using test::in_group;
using test::member_of_group;

class Groups : public testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(Of, Groups, testing::Values(1, 2, 3, 4));

TEST_P(Groups, SumOverRanksInEveryTypeAndSize) {
  in_group(GetParam(), [](Communicator& ranks) {
    test::expect_sums_in_every_type_and_size(ranks, at::kCPU);
    std::vector<float> floats{1.5F, static_cast<float>(ranks.rank())};
    std::vector<int64_t> integers{int64_t{1} << 60};
    ASSERT_TRUE(ranks.all_reduce_sum(std::span(floats), "metrics").ok());
    ASSERT_TRUE(ranks.all_reduce_sum(std::span(integers), "metrics").ok());
    const int size = ranks.size();
    EXPECT_EQ(floats, (std::vector<float>{1.5F * static_cast<float>(size), static_cast<float>(size * (size - 1) / 2)}));
    EXPECT_EQ(integers[0], (int64_t{1} << 60) * size);
    std::vector<double> extremes{static_cast<double>(ranks.rank()), -1.0 - ranks.rank()};
    std::vector<double> smallest = extremes;
    ASSERT_TRUE(ranks.all_reduce_extreme(extremes, Extreme::kMax, "metrics").ok());
    ASSERT_TRUE(ranks.all_reduce_extreme(smallest, Extreme::kMin, "metrics").ok());
    EXPECT_EQ(extremes, (std::vector<double>{size - 1.0, -1.0}));
    EXPECT_EQ(smallest, (std::vector<double>{0.0, -static_cast<double>(size)}));
  });
}

TEST_P(Groups, ManyBucketsAtOnceInAnyOrderOfWaiting) {
  in_group(GetParam(), [](Communicator& ranks) { test::expect_buckets_in_any_order_of_waiting(ranks, at::kCPU); });
}

TEST_P(Groups, SumIsTheSameBitsOnEveryRank) {
  in_group(GetParam(), [](Communicator& ranks) { test::expect_the_same_bits_on_every_rank(ranks, at::kCPU); });
}

TEST_P(Groups, ReduceScatterGivesEachRankItsPart) {
  in_group(GetParam(), [](Communicator& ranks) {
    test::expect_each_rank_gets_its_part_of_a_sum(ranks, at::kCPU);
    EXPECT_FALSE(ranks.reduce_scatter_sum(at::ones({3}), at::ones({2}), "gradients").ok());
  });
}

TEST_P(Groups, GatherAndBroadcastMoveEveryType) {
  in_group(GetParam(), [](Communicator& ranks) {
    test::expect_gather_and_broadcast_move_every_type(ranks, at::kCPU);
    EXPECT_FALSE(ranks.broadcast(at::ones({1}), ranks.size(), "weights").ok());
    EXPECT_FALSE(ranks.broadcast(at::ones({3, 2}).t(), 0, "weights").ok());
  });
}

TEST_P(Groups, AllToAllMovesPartsOfAnySize) {
  in_group(GetParam(), [](Communicator& ranks) {
    test::expect_all_to_all_moves_parts_of_any_size(ranks, at::kCPU);
    const std::vector<int64_t> sizes(static_cast<size_t>(ranks.size()), 1);
    const at::Tensor long_one = at::ones({ranks.size() + 1});
    EXPECT_FALSE(ranks.all_to_all(long_one, sizes, long_one, sizes, "gradients").ok());
  });
}

// A thread talks in the side group while this one talks in the group, each in an order of its own.
TEST_P(Groups, TheSideGroupHasAnOrderOfItsOwn) {
  in_group(GetParam(), [](Communicator& ranks) {
    const auto side = ranks.side_group();
    ASSERT_TRUE(side.ok()) << side.error().to_string();
    EXPECT_EQ(*ranks.side_group(), *side);
    EXPECT_EQ((*side)->rank(), ranks.rank());
    EXPECT_EQ((*side)->size(), ranks.size());
    constexpr int kTurns = 50;
    std::thread talker([&ranks, &group = **side] {
      for (int turn = 0; turn < kTurns; ++turn) {
        const auto all = group.exchange(std::to_string(turn) + "/" + std::to_string(ranks.rank()), "completions");
        ASSERT_TRUE(all.ok()) << all.error().to_string();
        for (int rank = 0; rank < ranks.size(); ++rank) {
          EXPECT_EQ((*all)[static_cast<size_t>(rank)], std::to_string(turn) + "/" + std::to_string(rank));
        }
      }
      ASSERT_TRUE(group.add_to_counter("prompts", 1, "rollout").ok());
    });
    for (int turn = 0; turn < kTurns; ++turn) {
      const at::Tensor sum = at::full({100}, turn + 1.0);
      ASSERT_TRUE(ranks.all_reduce_sum(sum, "gradients").ok());
      EXPECT_EQ(sum[99].item<double>(), (turn + 1.0) * ranks.size());
    }
    talker.join();
    ASSERT_TRUE(ranks.barrier("end").ok());
    EXPECT_EQ((*side)->add_to_counter("prompts", 0, "rollout").value(), ranks.size());
    EXPECT_EQ(ranks.add_to_counter("prompts", 0, "rollout").value(), 0) << "its counters are its own";
    ASSERT_TRUE(ranks.barrier("end").ok());
  });
}

// Neighbours have collectives of their own, for every size of a part, next to those of the whole group.
TEST_P(Groups, NeighboursAreGroupsOfTheirOwn) {
  in_group(GetParam(), [](Communicator& ranks) {
    for (int size = 1; size <= ranks.size(); ++size) {
      if (ranks.size() % size != 0) {
        const auto refused = ranks.neighbours(size);
        ASSERT_FALSE(refused.ok());
        EXPECT_EQ(refused.error().kind, ErrorKind::kInternal);
        continue;
      }
      const auto part = ranks.neighbours(size);
      ASSERT_TRUE(part.ok()) << part.error().to_string();
      EXPECT_EQ(*ranks.neighbours(size), *part) << "one group for each size";
      Communicator& group = **part;
      const int first = ranks.rank() / size * size;
      ASSERT_EQ(group.size(), size);
      EXPECT_EQ(group.rank(), ranks.rank() - first);
      for (const at::ScalarType type : {at::kFloat, at::kDouble, at::kBFloat16, at::kLong}) {
        std::vector<int64_t> sent, received;
        std::vector<at::Tensor> parts, expected;
        for (int other = 0; other < size; ++other) {
          sent.push_back(7 * (first + other));
          received.push_back(7 * ranks.rank());
          parts.push_back(at::full({sent.back()}, ranks.rank() * 10 + first + other, type));
          expected.push_back(at::full({received.back()}, (first + other) * 10 + ranks.rank(), type));
        }
        const at::Tensor output = at::zeros_like(at::cat(expected));
        const Result<> moved = group.all_to_all(at::cat(parts), sent, output, received, "sequence parallel");
        ASSERT_TRUE(moved.ok()) << moved.error().to_string();
        EXPECT_TRUE(output.equal(at::cat(expected))) << type << " " << size;
        const at::Tensor everyone = at::ones({3}, at::kDouble);
        ASSERT_TRUE(ranks.all_reduce_sum(everyone, "gradients").ok());
        EXPECT_EQ(everyone[2].item<double>(), ranks.size());
      }
      const at::Tensor sum = at::full({5}, ranks.rank() + 1.0, at::kDouble);
      ASSERT_TRUE(group.all_reduce_sum(sum, "sequence parallel").ok());
      EXPECT_EQ(sum[4].item<double>(), size * (first + 1) + size * (size - 1) / 2.0);
      EXPECT_EQ(group.exchange(std::to_string(ranks.rank()), "samples")->back(), std::to_string(first + size - 1));
    }
  });
}

// Every second one of four neighbours: ranks of a mesh that share tokens, next to those that share layers.
TEST_P(Groups, AGroupHasGroupsToo) {
  in_group(GetParam(), [](Communicator& ranks) {
    const int step = ranks.size() == 4 ? 2 : 1, size = ranks.size() / step, rest = ranks.rank() % step;
    const auto neighbours = ranks.neighbours(ranks.size());
    ASSERT_TRUE(neighbours.ok()) << neighbours.error().to_string();
    const auto part = (*neighbours)->strided(step);
    ASSERT_TRUE(part.ok()) << part.error().to_string();
    EXPECT_EQ((*part)->size(), size);
    EXPECT_EQ((*part)->rank(), ranks.rank() / step);
    const at::Tensor sum = at::full({3}, ranks.rank(), at::kLong);
    ASSERT_TRUE((*part)->all_reduce_sum(sum, "sequence parallel").ok());
    EXPECT_EQ(sum[2].item<int64_t>(), size * rest + step * size * (size - 1) / 2);
  });
}

// One rank out of each group of neighbours, next to these groups.
TEST_P(Groups, StridedRanksAreGroupsOfTheirOwn) {
  in_group(GetParam(), [](Communicator& ranks) {
    for (int step = 1; step <= ranks.size(); ++step) {
      const auto part = ranks.strided(step);
      if (ranks.size() % step != 0) {
        ASSERT_FALSE(part.ok());
        EXPECT_EQ(part.error().kind, ErrorKind::kInternal);
        continue;
      }
      ASSERT_TRUE(part.ok()) << part.error().to_string();
      EXPECT_EQ(*ranks.strided(step), *part) << "one group for each step";
      Communicator& group = **part;
      const int size = ranks.size() / step, rest = ranks.rank() % step;
      ASSERT_EQ(group.size(), size);
      EXPECT_EQ(group.rank(), ranks.rank() / step);
      const at::Tensor sum = at::full({5}, ranks.rank() + 1.0, at::kDouble);
      ASSERT_TRUE(group.all_reduce_sum(sum, "gradients").ok());
      EXPECT_EQ(sum[4].item<double>(), size * (rest + 1) + step * size * (size - 1) / 2.0);
      const at::Tensor across = at::full({2}, ranks.rank(), at::kLong);
      ASSERT_TRUE((*ranks.neighbours(step))->all_reduce_sum(across, "tensor parallel").ok());
      const int first = ranks.rank() - rest;
      EXPECT_EQ(across[1].item<int64_t>(), step * first + step * (step - 1) / 2);
      const at::Tensor root = at::full({3}, ranks.rank(), at::kLong);
      ASSERT_TRUE(group.broadcast(root, size - 1, "gradients").ok());
      EXPECT_EQ(root[0].item<int64_t>(), (size - 1) * step + rest);
    }
  });
}

TEST_P(Groups, ExchangeBytesOfAnySize) {
  in_group(GetParam(), [](Communicator& ranks) {
    // Every byte, again and again.
    const auto text_of_rank = [](int rank, size_t scale) {
      std::string bytes, text;
      for (size_t i = 0; i < 256; ++i) bytes.push_back(static_cast<char>(i * 31 + static_cast<size_t>(rank)));
      const size_t size = scale * static_cast<size_t>(rank);
      while (text.size() < size) text += bytes;
      text.resize(size);
      return text;
    };
    for (const size_t scale : {size_t{0}, size_t{1}, size_t{1000}, size_t{2040}, size_t{2041}, size_t{10} << 20}) {
      const auto texts = ranks.exchange(text_of_rank(ranks.rank(), scale), "samples");
      ASSERT_TRUE(texts.ok());
      ASSERT_EQ(texts->size(), static_cast<size_t>(ranks.size()));
      for (int rank = 0; rank < ranks.size(); ++rank)
        EXPECT_TRUE((*texts)[static_cast<size_t>(rank)] == text_of_rank(rank, scale)) << rank << " " << scale;
    }
    for (int root = 0; root < ranks.size(); ++root) {
      const auto bytes = ranks.broadcast_bytes(text_of_rank(ranks.rank(), 1 << 20), root, "samples");
      ASSERT_TRUE(bytes.ok());
      EXPECT_TRUE(*bytes == text_of_rank(root, 1 << 20));
    }
  });
}

// A rank that waits for the others works meanwhile, until it has nothing more to do.
TEST_P(Groups, RanksWorkWhileTheyWaitInAnExchange) {
  in_group(GetParam(), [](Communicator& ranks) {
    if (ranks.size() == 1) return;
    for (const bool goes_on : {true, false}) {
      const std::string last = goes_on ? "came last" : "came last again";
      int num_turns = 0;
      const auto meanwhile = [&](int wait_ms) {
        EXPECT_GE(wait_ms, 1);
        EXPECT_TRUE(ranks.add_to_counter(last, 1, "rollout").ok());
        std::this_thread::sleep_for(std::chrono::milliseconds(wait_ms));
        return ++num_turns < 3 || goes_on;
      };
      // The last rank comes when all others have had three turns.
      const bool is_last = ranks.rank() + 1 == ranks.size();
      while (is_last && ranks.add_to_counter(last, 0, "rollout").value() < 3 * (ranks.size() - 1))
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
      const auto texts =
          ranks.exchange(std::string(5000, 'x') + std::to_string(ranks.rank()), "completions", meanwhile);
      ASSERT_TRUE(texts.ok()) << texts.error().to_string();
      for (int rank = 0; rank < ranks.size(); ++rank)
        EXPECT_EQ((*texts)[static_cast<size_t>(rank)].substr(5000), std::to_string(rank));
      if (!is_last && !goes_on) EXPECT_EQ(num_turns, 3);
    }
  });
}

TEST_P(Groups, ANoteIsTakenOnce) {
  in_group(GetParam(), [](Communicator& ranks) {
    const int next = (ranks.rank() + 1) % ranks.size();
    const std::string bytes = std::string(100'000, 'x') + '\0' + std::to_string(ranks.rank());
    const std::string own = "note/" + std::to_string(ranks.rank());
    EXPECT_EQ(ranks.take_note(own, "rewards").value(), std::nullopt);
    ASSERT_TRUE(ranks.barrier("begin").ok());
    ASSERT_TRUE(ranks.leave_note("note/" + std::to_string(next), bytes, "rewards").ok());
    ASSERT_TRUE(ranks.barrier("middle").ok());
    const std::optional<std::string> note = ranks.take_note(own, "rewards").value();
    ASSERT_TRUE(note.has_value());
    EXPECT_EQ(note->substr(100'001), std::to_string((ranks.rank() + ranks.size() - 1) % ranks.size()));
    EXPECT_EQ(ranks.take_note(own, "rewards").value(), std::nullopt);
    EXPECT_FALSE(ranks.leave_note("large", std::string(Communicator::kMaxNoteBytes + 1, 'x'), "rewards").ok());
    ASSERT_TRUE(ranks.leave_note("largest", std::string(Communicator::kMaxNoteBytes, 'x'), "rewards").ok());
    ASSERT_TRUE(ranks.barrier("end").ok());
  });
}

TEST_P(Groups, SendAroundARing) {
  in_group(GetParam(), [](Communicator& ranks) {
    if (ranks.size() == 1) return;
    test::expect_numbers_around_a_ring(ranks, at::kCPU);
    EXPECT_FALSE(ranks.send(at::ones({1}), ranks.rank(), "ring").ok());
    EXPECT_TRUE(ranks.barrier("ring").ok());
  });
}

// The order of the sum is the same for every part: rank 0's term first.
TEST(ReduceScatter, AddsInTheOrderOfRanks) {
  in_group(3, [](Communicator& ranks) {
    const std::array<float, 3> terms{1e8F, -1e8F, 1.0F};  // (1e8 - 1e8) + 1 is 1, every other order gives 0 or 1
    const at::Tensor input = at::full({6}, terms[static_cast<size_t>(ranks.rank())], at::kFloat);
    const at::Tensor output = at::zeros({2}, at::kFloat);
    ASSERT_TRUE(ranks.reduce_scatter_sum(input, output, "gradients").ok());
    EXPECT_EQ(output[0].item<float>(), 1.0F);
    EXPECT_EQ(output[1].item<float>(), 1.0F);
  });
}

// So does a sum of few numbers, in which every rank sends its term to all others at once.
TEST(AllReduce, AddsFewNumbersInTheOrderOfRanks) {
  in_group(3, [](Communicator& ranks) {
    const std::array<float, 3> terms{1e8F, -1e8F, 1.0F};
    const at::Tensor sums = at::full({300}, terms[static_cast<size_t>(ranks.rank())], at::kFloat);
    ASSERT_TRUE(ranks.all_reduce_sum(sums, "gradients").ok());
    EXPECT_TRUE(sums.eq(1.0F).all().item<bool>()) << sums;
    const at::Tensor later = at::full({300}, terms[static_cast<size_t>(ranks.rank())], at::kFloat);
    auto pending = ranks.start_all_reduce_sum(later, "gradients");
    ASSERT_TRUE(pending.ok());
    ASSERT_TRUE((*pending)->wait().ok());
    EXPECT_TRUE(later.eq(1.0F).all().item<bool>()) << later;
  });
}

// Each round waits for every rank.
TEST(Exchange, ShortTextsTakeOneRound) {
  const auto store = memory_store();
  ASSERT_TRUE(store->set(kVerdictKey, kNoVerdict).ok());
  for (int rank = 0; rank < 2; ++rank) ASSERT_TRUE(store->set(state_key(rank), encode(RankState{})).ok());
  std::vector<std::thread> threads;
  for (int rank = 0; rank < 2; ++rank) {
    threads.emplace_back([&, rank] {
      const auto ranks = member_of_group(*store, rank, 2);
      ASSERT_NE(ranks, nullptr);
      EXPECT_EQ(ranks->exchange(std::string(2000, 'x'), "samples")->size(), 2U);
      EXPECT_TRUE(ranks->leave().ok());
    });
  }
  for (std::thread& thread : threads) thread.join();
  const auto states = store->get_all({state_key(0)});
  ASSERT_TRUE(states.ok());
  EXPECT_EQ(decode_rank_state(states->front())->calls, 2) << "the start of the group and one round";
}

// A thread of the ordinary kind would take the processor from the sender that wakes it up.
TEST(Gloo, TheThreadsThatTakeMessagesGiveWayToAllOthers) {
  if (::sched_getscheduler(0) != SCHED_OTHER) GTEST_SKIP() << "somebody has chosen how the kernel runs this program";
  const auto num_batch_threads = [] {
    int count = 0;
    for (const auto& thread : std::filesystem::directory_iterator("/proc/self/task"))
      count += ::sched_getscheduler(std::stoi(thread.path().filename().string())) == SCHED_BATCH ? 1 : 0;
    return count;
  };
  in_group(2, [&](Communicator& ranks) {
    EXPECT_GE(num_batch_threads(), 2);
    EXPECT_EQ(::sched_getscheduler(0), SCHED_OTHER) << "the ranks' own threads stay as they were";
    EXPECT_TRUE(ranks.barrier("end").ok());
  });
}

// The store shows for whom a rank waits in a call of some ranks: in every second group of two of four neighbours.
TEST(Failures, ACallOfSomeRanksShowsForWhomARankWaits) {
  const auto store = memory_store();
  ASSERT_TRUE(store->set(kVerdictKey, kNoVerdict).ok());
  for (int rank = 0; rank < 4; ++rank) ASSERT_TRUE(store->set(state_key(rank), encode(RankState{})).ok());
  std::vector<std::thread> threads;
  for (int rank = 0; rank < 4; ++rank) {
    threads.emplace_back([&, rank] {
      const auto ranks = member_of_group(*store, rank, 4);
      ASSERT_NE(ranks, nullptr);
      const auto pair = (*ranks->strided(2))->neighbours(2);
      ASSERT_TRUE(pair.ok());
      if (rank == 3) {
        RankState waiting;
        for (int tries = 0; tries < 20000 && (!waiting.waits || waiting.stage != "sums"); ++tries) {
          std::this_thread::sleep_for(std::chrono::milliseconds(1));
          waiting = *decode_rank_state(store->get_all({state_key(1)}).value().front());
        }
        EXPECT_EQ(waiting.awaits, (RankSet{1, 2, 2}));
      }
      if (rank % 2 == 1) EXPECT_TRUE((*pair)->all_reduce_sum(at::ones({1}), "sums").ok());
      EXPECT_TRUE(ranks->leave().ok());
    });
  }
  for (std::thread& thread : threads) thread.join();
}

// A rank's own error reaches the others in whatever they wait for, and all later calls give the same one.
TEST(Failures, ARanksErrorEndsTheWaitingOfTheOthers) {
  in_group(1, [](Communicator&) {});
  const auto store = memory_store();
  ASSERT_TRUE(store->set(kVerdictKey, kNoVerdict).ok());
  for (int rank = 0; rank < 3; ++rank) ASSERT_TRUE(store->set(state_key(rank), encode(RankState{})).ok());
  std::vector<std::thread> threads;
  for (int rank = 0; rank < 3; ++rank) {
    threads.emplace_back([&, rank] {
      const auto ranks = member_of_group(*store, rank, 3);
      ASSERT_NE(ranks, nullptr);
      ASSERT_TRUE(ranks->barrier("start").ok());
      ranks->enter("rewards", 4);
      if (rank == 2) return ranks->fail({ErrorKind::kReward, "a reward failed", "math@pack", {}});
      const at::Tensor tensor = at::ones({10}, at::kFloat);
      const Result<> done =
          rank == 0 ? ranks->all_reduce_sum(tensor, "gradients") : ranks->recv(tensor, 2, "activations");
      ASSERT_FALSE(done.ok());
      EXPECT_EQ(done.error().kind, ErrorKind::kRankFailure);
      EXPECT_EQ(done.error().what,
                "rank 2 ended in 'rewards' of step 4 with an error: math@pack: a reward failed; this rank (" +
                    std::to_string(rank) + ") was in '" + (rank == 0 ? "gradients" : "activations") + "'");
      const Result<> later = ranks->barrier("checkpoint");
      ASSERT_FALSE(later.ok());
      EXPECT_EQ(later.error().kind, ErrorKind::kRankFailure);
      EXPECT_FALSE(ranks->check("checkpoint").ok());
    });
  }
  for (std::thread& thread : threads) thread.join();
}

// A machine without a GPU, or a build without the module: the error says what is missing.
TEST(Nccl, WithoutWhatItNeedsAnErrorSaysSo) {
  const auto absent = open_nccl_group({}, "/nowhere/libmortise_nccl.so");
  ASSERT_FALSE(absent.ok());
  EXPECT_EQ(absent.error().kind, ErrorKind::kConfig);
  EXPECT_NE(absent.error().what.find("/nowhere/libmortise_nccl.so is not there"), std::string::npos);
  EXPECT_NE(absent.error().next.find("nvcc and NCCL's header"), std::string::npos);
  const std::string module = std::string(MORTISE_BINARY_DIR) + "/lib/mortise/" + kNcclModule;
  if (!std::filesystem::exists(module)) GTEST_SKIP() << "this machine has no nvcc or no NCCL";
  const auto early = open_nccl_group({}, module);  // nothing has loaded libtorch's CUDA half here
  ASSERT_FALSE(early.ok());
  EXPECT_EQ(early.error().kind, ErrorKind::kConfig);
  EXPECT_NE(early.error().what.find("cannot be loaded"), std::string::npos) << early.error().what;
  EXPECT_NE(early.error().next.find("./dev deps --cuda"), std::string::npos);
}

TEST(Nccl, OneProcessAndTheCpuNeedNoModule) {
  EXPECT_TRUE(carry_device(*one_process_communicator(), at::Device(at::kCUDA, 0)).ok());
  in_group(2, [](Communicator& ranks) { EXPECT_TRUE(carry_device(ranks, at::kCPU).ok()); });
}

}  // namespace
}  // namespace mortise
