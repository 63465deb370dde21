// When the pool tries again, and the memory that rows come in: plain values, no process.
#include <gtest/gtest.h>

#include "plugin/worker/piece_queue.h"
#include "plugin/worker/retry_policy.h"
#include "plugin/worker/row_arena.h"
#include "worker_fixture.h"

namespace mortise::test {
namespace {

constexpr int64_t kMs = 1'000'000;

TEST(WorkerRetry, PausesDoubleUpToTheLongestAndEndWithASuccess) {
  BackOff pause(10, 50);
  EXPECT_TRUE(pause.may_try(0));
  EXPECT_EQ(pause.failing_ms(5 * kMs), 0);
  std::vector<int64_t> waits;
  int64_t now = 7 * kMs;
  for (int i = 0; i < 5; ++i) {
    pause.fail(now);
    EXPECT_FALSE(pause.may_try(now));
    waits.push_back(pause.wait_ms(now));
    now += waits.back() * kMs;
    EXPECT_TRUE(pause.may_try(now));
  }
  EXPECT_EQ(waits, (std::vector<int64_t>{10, 20, 40, 50, 50}));
  EXPECT_EQ(pause.failing_ms(now), 170);
  pause.succeed();
  EXPECT_TRUE(pause.may_try(now));
  EXPECT_EQ(pause.failing_ms(now), 0);
}

TEST(WorkerRetry, OnlyEventsWithinTheWindowCount) {
  EventWindow window(60'000);
  for (int64_t minute = 0; minute < 100; ++minute) EXPECT_LE(window.add(minute * 61'000 * kMs), 1U);
  EventWindow burst(60'000);
  for (size_t i = 1; i <= 4; ++i) EXPECT_EQ(burst.add(static_cast<int64_t>(i) * 20'000 * kMs), i);
  EXPECT_EQ(burst.add(int64_t{100'000} * kMs), 4U) << "the one at 20 s is past the window";
}

TEST(WorkerArena, FewBlocksHoldManyParts) {
  RowArena arena;
  std::vector<RowArena::Range> ranges;
  const size_t before = num_open_files();
  for (size_t i = 0; i < 5'000; ++i) {
    ASSERT_OK_AND_ASSIGN(const RowArena::Range range, arena.allocate(1 + i % 9'000));
    std::ranges::fill(arena.bytes(range), static_cast<std::byte>(i % 251));
    ranges.push_back(range);
  }
  EXPECT_LE(arena.num_blocks(), 8U);
  EXPECT_EQ(num_open_files(), before + arena.num_blocks());
  for (size_t i = 0; i < ranges.size(); ++i) {
    const std::span<std::byte> bytes = arena.bytes(ranges[i]);
    EXPECT_EQ(bytes.size(), 1 + i % 9'000);
    EXPECT_EQ(bytes.front(), static_cast<std::byte>(i % 251)) << i;
    EXPECT_EQ(bytes.back(), static_cast<std::byte>(i % 251)) << i;
  }
}

TEST(WorkerArena, ABatchLikeTheLastOneReusesItsMemory) {
  RowArena arena;
  const auto fill = [&](int parts) {
    arena.reset();
    int64_t block = -1;
    for (int i = 0; i < parts; ++i) {
      auto range = arena.allocate(100'000);
      EXPECT_TRUE(range.ok());
      block = range->block;
    }
    return block;
  };
  fill(100);
  EXPECT_GT(arena.num_blocks(), 1U);
  fill(100);
  const int64_t block = fill(100);
  EXPECT_EQ(arena.num_blocks(), 1U);
  EXPECT_EQ(fill(110), block) << "a little more fits as well";
  EXPECT_EQ(fill(100), block);
  fill(3);  // much less: the memory is given back after it
  EXPECT_NE(fill(3), block);
  ASSERT_OK_AND_ASSIGN(const RowArena::Range large, arena.allocate(size_t{64} << 20));
  EXPECT_EQ(arena.bytes(large).size(), size_t{64} << 20);
}

}  // namespace
}  // namespace mortise::test
