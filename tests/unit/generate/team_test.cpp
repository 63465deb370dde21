// The team and its barrier: every member takes part in every job, and nobody passes a barrier early.
#include "generate/decode/team.h"

#include <gtest/gtest.h>

#include "generate/decode/aligned.h"

namespace mortise {
namespace {

TEST(Team, EveryMemberRunsEveryJob) {
  for (const int size : {1, 2, 5}) {
    Team team(size);
    ASSERT_EQ(team.size(), size);
    std::vector<int> counts(static_cast<size_t>(size));
    for (int i = 0; i < 200; ++i) team.run([&](int member) { ++counts[static_cast<size_t>(member)]; });
    for (const int count : counts) EXPECT_EQ(count, 200);
  }
}

TEST(Team, BarrierSeparatesPhases) {
  constexpr int kSize = 3;
  constexpr int kPhases = 300;
  Team team(kSize);
  SpinBarrier barrier(kSize);
  std::vector<int> written(kSize);  // plain on purpose: the barrier alone orders the accesses
  std::atomic<int> wrong{0};
  team.run([&](int member) {
    bool sense = false;
    for (int phase = 1; phase <= kPhases; ++phase) {
      written[static_cast<size_t>(member)] = phase;
      barrier.wait(sense);
      for (const int value : written) wrong += value == phase ? 0 : 1;
      barrier.wait(sense);
    }
  });
  EXPECT_EQ(wrong, 0);
}

// Small ones and those on huge pages alike.
TEST(FloatBuffer, IsZeroedAndAligned) {
  FloatBuffer buffer;
  for (const int64_t size : {1L, 1000L, (1L << 20) - 1, 1L << 20, 3'000'001L}) {
    buffer.reserve(size);
    ASSERT_EQ(buffer.size(), size);
    EXPECT_EQ(reinterpret_cast<uintptr_t>(buffer.data()) % 64, 0U);
    EXPECT_TRUE(std::all_of(buffer.data(), buffer.data() + size, [](float x) { return x == 0.0F; })) << size;
    std::fill(buffer.data(), buffer.data() + size, 1.0F);
    FloatBuffer moved = std::move(buffer);
    EXPECT_EQ(moved.data()[size - 1], 1.0F);
    buffer = std::move(moved);
    buffer.reserve(size / 2);  // keeps what there is
    EXPECT_EQ(buffer.data()[size - 1], 1.0F);
  }
  buffer.free();
  EXPECT_EQ(buffer.data(), nullptr);
}

}  // namespace
}  // namespace mortise
