// Every collective on real Gloo groups of 1 to 4 ranks, each a thread of this program with a store in memory.
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "dist/gloo/c10d_store.h"
#include "dist/gloo/gloo_communicator.h"
#include "dist/one_process.h"
#include "dist/watch/rank_watch.h"

namespace mortise {
namespace {

using Body = std::function<void(Communicator&)>;

std::unique_ptr<Communicator> member_of_group(const C10dStore& store, int rank, int size) {
  WatchOptions watch;
  watch.rank = rank;
  watch.size = size;
  watch.store_rank = -1;
  watch.processes.resize(static_cast<size_t>(size));
  watch.beat = std::chrono::milliseconds(50);
  watch.end_process = [](const Error& error) { ADD_FAILURE() << error.to_string(); };
  GlooOptions options;
  options.rank = rank;
  options.size = size;
  options.address = "127.0.0.1";
  auto ranks =
      gloo_communicator(std::make_unique<C10dStore>(store.handle()),
                        std::make_unique<RankWatch>(std::make_unique<C10dStore>(store.handle()), watch), options);
  if (ranks.ok()) return std::move(*ranks);
  ADD_FAILURE() << ranks.error().to_string();
  return nullptr;
}

// Runs the body on every rank of a group of this size.
void in_group(int size, const Body& body) {
  SCOPED_TRACE("ranks: " + std::to_string(size));
  if (size == 1) return body(*one_process_communicator());
  const auto store = memory_store();
  ASSERT_TRUE(store->set(kVerdictKey, kNoVerdict).ok());
  for (int rank = 0; rank < size; ++rank) ASSERT_TRUE(store->set(state_key(rank), encode(RankState{})).ok());
  std::vector<std::thread> threads;
  for (int rank = 0; rank < size; ++rank) {
    threads.emplace_back([&, rank] {
      const auto ranks = member_of_group(*store, rank, size);
      if (ranks == nullptr) return;
      body(*ranks);
      const Result<> left = ranks->leave();
      EXPECT_TRUE(left.ok()) << left.error().to_string();
    });
  }
  for (std::thread& thread : threads) thread.join();
}

class Groups : public testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(Of, Groups, testing::Values(1, 2, 3, 4));

// A different number for each rank and place, exact in float32.
double value_at(int rank, int64_t place) { return 3.0 * rank + static_cast<double>(place % 97) - 40.0; }

at::Tensor values_of(int rank, int64_t count, at::ScalarType type) {
  const at::Tensor tensor = at::empty({count}, at::kDouble);
  for (int64_t i = 0; i < count; ++i) tensor.data_ptr<double>()[i] = value_at(rank, i);
  return tensor.to(type);
}

double sum_at(int size, int64_t place) {
  double sum = 0;
  for (int rank = 0; rank < size; ++rank) sum += value_at(rank, place);
  return sum;
}

constexpr std::array<int64_t, 6> kCounts{0, 1, 3, 7, 1000, 65537};

TEST_P(Groups, SumOverRanksInEveryTypeAndSize) {
  in_group(GetParam(), [](Communicator& ranks) {
    for (const at::ScalarType type : {at::kFloat, at::kDouble, at::kLong}) {
      for (const int64_t count : kCounts) {
        const at::Tensor tensor = values_of(ranks.rank(), count, type);
        const auto pending_tensor = tensor.clone();
        auto pending = ranks.start_all_reduce_sum(pending_tensor, "gradients");
        ASSERT_TRUE(pending.ok());
        ASSERT_TRUE(ranks.all_reduce_sum(tensor, "gradients").ok());
        ASSERT_TRUE((*pending)->wait().ok());
        const at::Tensor got = tensor.to(at::kDouble);
        const at::Tensor later = pending_tensor.to(at::kDouble);
        for (int64_t i = 0; i < count; ++i) {
          ASSERT_EQ(got.data_ptr<double>()[i], sum_at(ranks.size(), i)) << type << " " << i;
          ASSERT_EQ(later.data_ptr<double>()[i], sum_at(ranks.size(), i)) << type << " " << i;
        }
      }
    }
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
  in_group(GetParam(), [](Communicator& ranks) {
    std::vector<at::Tensor> buckets;
    std::vector<std::unique_ptr<PendingCollective>> pending;
    for (int bucket = 0; bucket < 40; ++bucket) {
      buckets.push_back(at::full({1000 + bucket}, bucket + 1.0, at::kDouble));
      pending.push_back(*ranks.start_all_reduce_sum(buckets.back(), "gradients"));
    }
    std::reverse(pending.begin(), pending.end());
    for (const auto& one : pending) ASSERT_TRUE(one->wait().ok());
    for (int bucket = 0; bucket < 40; ++bucket)
      EXPECT_EQ(buckets[static_cast<size_t>(bucket)].sum().item<double>(),
                (1000.0 + bucket) * (bucket + 1) * ranks.size());
  });
}

TEST_P(Groups, SumIsTheSameBitsOnEveryRank) {
  in_group(GetParam(), [](Communicator& ranks) {
    at::Tensor tensor = at::empty({4099}, at::kFloat);
    for (int64_t i = 0; i < tensor.numel(); ++i)
      tensor.data_ptr<float>()[i] = 1.0F / static_cast<float>(1 + ranks.rank() * 13 + i * 7);
    ASSERT_TRUE(ranks.all_reduce_sum(tensor, "gradients").ok());
    const std::string bytes(static_cast<const char*>(tensor.data_ptr()), tensor.nbytes());
    const auto all = ranks.exchange(bytes, "check");
    ASSERT_TRUE(all.ok());
    for (const std::string& other : *all) EXPECT_TRUE(other == bytes);
  });
}

TEST_P(Groups, ReduceScatterGivesEachRankItsPart) {
  in_group(GetParam(), [](Communicator& ranks) {
    for (const at::ScalarType type : {at::kFloat, at::kDouble, at::kLong}) {
      for (const int64_t count : kCounts) {
        const at::Tensor input = values_of(ranks.rank(), count * ranks.size(), type);
        const at::Tensor output = at::zeros({count}, type);
        ASSERT_TRUE(ranks.reduce_scatter_sum(input, output, "gradients").ok());
        const at::Tensor got = output.to(at::kDouble);
        for (int64_t i = 0; i < count; ++i)
          ASSERT_EQ(got.data_ptr<double>()[i], sum_at(ranks.size(), ranks.rank() * count + i)) << type << " " << i;
      }
    }
    EXPECT_FALSE(ranks.reduce_scatter_sum(at::ones({3}), at::ones({2}), "gradients").ok());
  });
}

TEST_P(Groups, GatherAndBroadcastMoveEveryType) {
  in_group(GetParam(), [](Communicator& ranks) {
    for (const at::ScalarType type :
         {at::kFloat, at::kDouble, at::kBFloat16, at::kHalf, at::kLong, at::kInt, at::kByte, at::kBool}) {
      for (const int64_t count : {int64_t{0}, int64_t{1}, int64_t{5}, int64_t{4096}}) {
        const at::Tensor input = at::full({count}, ranks.rank() % 2, type);
        const at::Tensor all = at::zeros({ranks.size(), count}, type);
        ASSERT_TRUE(ranks.all_gather(input, all, "weights").ok());
        for (int rank = 0; rank < ranks.size(); ++rank)
          ASSERT_EQ(all[rank].to(at::kDouble).sum().item<double>(), static_cast<double>(rank % 2 * count)) << type;
        for (int root = 0; root < ranks.size(); ++root) {
          const at::Tensor tensor = at::full({count}, ranks.rank() == root ? 1 : 0, type);
          ASSERT_TRUE(ranks.broadcast(tensor, root, "weights").ok());
          ASSERT_EQ(tensor.to(at::kDouble).sum().item<double>(), static_cast<double>(count)) << type;
        }
      }
    }
    EXPECT_FALSE(ranks.broadcast(at::ones({1}), ranks.size(), "weights").ok());
    EXPECT_FALSE(ranks.broadcast(at::ones({3, 2}).t(), 0, "weights").ok());
  });
}

// Rank a has a * 10 + b numbers for b; some ranks have nothing.
TEST_P(Groups, AllToAllMovesPartsOfAnySize) {
  in_group(GetParam(), [](Communicator& ranks) {
    for (const at::ScalarType type : {at::kFloat, at::kDouble, at::kBFloat16, at::kLong}) {
      for (const int64_t scale : {0, 1, 1000}) {
        const auto count = [&](int from, int to) { return from % 2 == 0 ? scale * (from * 10 + to) : 0; };
        std::vector<int64_t> sent, received;
        std::vector<at::Tensor> parts, expected;
        for (int other = 0; other < ranks.size(); ++other) {
          sent.push_back(count(ranks.rank(), other));
          received.push_back(count(other, ranks.rank()));
          parts.push_back(at::full({sent.back()}, ranks.rank() * 10 + other, type));
          expected.push_back(at::full({received.back()}, other * 10 + ranks.rank(), type));
        }
        const at::Tensor output = at::zeros_like(at::cat(expected));
        const Result<> moved = ranks.all_to_all(at::cat(parts), sent, output, received, "gradients");
        ASSERT_TRUE(moved.ok()) << moved.error().to_string();
        EXPECT_TRUE(output.equal(at::cat(expected))) << type << " " << scale;
      }
    }
    const std::vector<int64_t> sizes(static_cast<size_t>(ranks.size()), 1);
    const at::Tensor long_one = at::ones({ranks.size() + 1});
    EXPECT_FALSE(ranks.all_to_all(long_one, sizes, long_one, sizes, "gradients").ok());
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

TEST_P(Groups, ExchangeBytesOfAnySize) {
  in_group(GetParam(), [](Communicator& ranks) {
    const auto text_of_rank = [](int rank, size_t scale) {
      std::string text;
      for (size_t i = 0; i < scale * static_cast<size_t>(rank); ++i)
        text.push_back(static_cast<char>(i * 31 + static_cast<size_t>(rank)));
      return text;
    };
    for (const size_t scale : {size_t{0}, size_t{1}, size_t{1000}, size_t{10} << 20}) {
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

TEST_P(Groups, SendAroundARing) {
  in_group(GetParam(), [](Communicator& ranks) {
    if (ranks.size() == 1) return;
    const int next = (ranks.rank() + 1) % ranks.size();
    const int before = (ranks.rank() + ranks.size() - 1) % ranks.size();
    for (const at::ScalarType type : {at::kFloat, at::kBFloat16, at::kLong}) {
      const at::Tensor mine = at::full({1001}, ranks.rank(), type);
      const at::Tensor got = at::zeros({1001}, type);
      if (ranks.rank() % 2 == 0) {
        ASSERT_TRUE(ranks.send(mine, next, "ring").ok());
        ASSERT_TRUE(ranks.recv(got, before, "ring").ok());
      } else {
        ASSERT_TRUE(ranks.recv(got, before, "ring").ok());
        ASSERT_TRUE(ranks.send(mine, next, "ring").ok());
      }
      EXPECT_TRUE(got.to(at::kDouble).eq(before).all().item<bool>());
    }
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

}  // namespace
}  // namespace mortise
