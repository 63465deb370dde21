// The team and its barrier: every member takes part in every job, and nobody passes a barrier early.
#include "generate/decode/team.h"

#include <gtest/gtest.h>

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

}  // namespace
}  // namespace mortise
