// The team and its barrier: every member takes part in every job, and no member passes a barrier early or keeps a core
// busy while it waits.
#include "foundation/base/team.h"

#include <gtest/gtest.h>
#include <sched.h>

#include <atomic>
#include <chrono>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "support/cpu_time.h"

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
  std::vector<int> written(kSize);  // plain on purpose: only the barrier orders the accesses
  std::atomic<int> wrong{0};
  team.run([&](int member) {
    for (int phase = 1; phase <= kPhases; ++phase) {
      written[static_cast<size_t>(member)] = phase;
      team.join();
      for (const int value : written) wrong += value == phase ? 0 : 1;
      team.join();
    }
  });
  EXPECT_EQ(wrong, 0);
}

// Whoever is late may be waiting for the very core that the others would spin on. Spinning would cost about all of that
// time; what a sleep costs is less than a thousandth of the limit.
TEST(Team, WhoWaitsLongSleeps) {
  constexpr auto kLate = std::chrono::milliseconds(400);
  Team team(2);
  double spent = 0;
  team.run([&](int member) {
    const double before = test::cpu_seconds();
    if (member == 1) std::this_thread::sleep_for(kLate);
    team.join();
    if (member == 0) spent = test::cpu_seconds() - before;
  });
  EXPECT_LT(spent, 0.1);
  const double before = test::cpu_seconds();
  team.run([&](int member) {
    if (member == 1) std::this_thread::sleep_for(kLate);
  });
  EXPECT_LT(test::cpu_seconds() - before, 0.1);
}

// Whichever member throws, wherever the others are: run() throws it, and the team works on.
TEST(Team, SurvivesAMemberThatThrows) {
  constexpr int kSize = 3;
  Team team(kSize);
  for (int round = 0; round < 300; ++round) {
    const int thrower = round % kSize;
    const int phases = round % 4;  // before it throws; the others go further
    try {
      team.run([&](int member) {
        for (int phase = 0; phase < 4; ++phase) {
          if (member == thrower && phase == phases) throw std::runtime_error("member " + std::to_string(member));
          team.join();
        }
      });
      FAIL() << "nothing was thrown";
    } catch (const std::runtime_error& error) {
      EXPECT_EQ(error.what(), "member " + std::to_string(thrower));
    }
    std::atomic<int> done{0};
    team.run([&](int) {
      team.join();
      ++done;
      team.join();
    });
    ASSERT_EQ(done, kSize);
  }
}

TEST(Team, AllMembersMayThrow) {
  for (const int size : {1, 3}) {
    Team team(size);
    for (int round = 0; round < 100; ++round) {
      EXPECT_THROW(team.run([](int) { throw std::bad_alloc(); }), std::bad_alloc);
    }
    int count = 0;
    team.run([&](int member) {
      if (member == 0) ++count;
    });
    EXPECT_EQ(count, 1);
  }
}

TEST(TeamTasks, EachRunsOnceAndRoundsMix) {
  for (const int size : {1, 2, 5}) {
    for (const Team::Placement placement : {Team::Placement::kKernel, Team::Placement::kOwn}) {
      Team team(size, placement);
      for (int round = 0; round < 300; ++round) {
        const int64_t count = round % 23;
        std::vector<int> runs(static_cast<size_t>(count));  // plain on purpose: only the team orders the accesses
        team.run_tasks(count, [&](int member, int64_t i) {
          ASSERT_TRUE(member >= 0 && member < size);
          ++runs[static_cast<size_t>(i)];
        });
        EXPECT_EQ(runs, std::vector<int>(static_cast<size_t>(count), 1));
        if (round % 3 > 0) continue;
        std::atomic<int> members{0};
        team.run([&](int) {
          ++members;
          team.join();
        });
        EXPECT_EQ(members, size);
      }
    }
  }
}

// The caller does all tasks but the one that the helper has begun, and waits for that one asleep.
TEST(TeamTasks, CallerWaitsForBegunTasksOnly) {
  for (const Team::Placement placement : {Team::Placement::kKernel, Team::Placement::kOwn}) {
    Team team(2, placement);
    std::atomic<bool> helper_has_one{false};
    std::atomic<int> of_helper{0}, done{0};
    double spent = 0;
    team.run_tasks(50, [&](int member, int64_t) {
      if (member == 1) {
        ++of_helper;
        helper_has_one = true;
        for (int ms = 0; ms < 300'000 && done < 49; ++ms) std::this_thread::sleep_for(std::chrono::milliseconds(1));
        std::this_thread::sleep_for(std::chrono::milliseconds(400));
      } else {
        while (!helper_has_one) std::this_thread::yield();
        spent = test::cpu_seconds();
      }
      ++done;
    });
    EXPECT_LT(test::cpu_seconds() - spent, 0.1);
    EXPECT_EQ(done, 50);
    EXPECT_EQ(of_helper, 1);
  }
}

// Calls that are shorter than a wake-up: most end before the helper looks, which then must not run a task of a later one
// as if it were of its own.
TEST(TeamTasks, HelperMayComeTooLate) {
  Team team(2, Team::Placement::kOwn);
  std::vector<int> runs(2000);
  for (size_t round = 0; round < runs.size(); ++round) {
    std::atomic<int> sum{0};
    team.run_tasks(2, [&sum, &runs, round](int, int64_t i) {
      sum += static_cast<int>(i) + 1;
      if (i == 1) ++runs[round];
    });
    ASSERT_EQ(sum, 3);
  }
  EXPECT_EQ(runs, std::vector<int>(runs.size(), 1));
}

TEST(TeamTasks, SurviveATaskThatThrows) {
  for (const int size : {1, 3}) {
    Team team(size);
    for (int round = 0; round < 300; ++round) {
      EXPECT_THROW(team.run_tasks(20,
                                  [&](int, int64_t i) {
                                    if (i == round % 20) throw std::runtime_error("a task");
                                  }),
                   std::runtime_error);
      std::atomic<int> done{0};
      team.run_tasks(20, [&](int, int64_t) { ++done; });
      ASSERT_EQ(done, 20);
    }
  }
}

bool may_run_only_on(const cpu_set_t& cpus) {
  cpu_set_t mine;
  return sched_getaffinity(0, sizeof(mine), &mine) == 0 && CPU_EQUAL(&mine, &cpus);
}

// Tasks of members that compute nothing, as if another program had their processors: one at a time gets the caller's. All
// at once would share it, and wait for each other.
TEST(TeamTasks, CallerTakesOneHelperAtATime) {
  cpu_set_t all;
  ASSERT_EQ(sched_getaffinity(0, sizeof(all), &all), 0);
  if (CPU_COUNT(&all) == 1) GTEST_SKIP() << "there is one processor";
  constexpr int kHelpers = 3;
  constexpr auto kNap = std::chrono::milliseconds(100);  // the caller looks much more often
  Team team(kHelpers + 1, Team::Placement::kOwn);
  std::atomic<int> begun{0}, taken{0}, done{0};
  std::atomic<bool> has_taken{false};
  std::thread([&] {  // a thread of its own, since it stays where it is
    cpu_set_t here;
    CPU_ZERO(&here);
    CPU_SET(sched_getcpu(), &here);
    ASSERT_EQ(sched_setaffinity(0, sizeof(here), &here), 0);
    team.run_tasks(kHelpers + 1, [&](int member, int64_t) {
      if (member == 0) {
        while (begun < kHelpers) std::this_thread::yield();
        return;
      }
      ++begun;
      for (int nap = 0; nap < 3'000 && !has_taken; ++nap) {
        std::this_thread::sleep_for(kNap);
        if (may_run_only_on(here)) has_taken = true;
      }
      std::this_thread::sleep_for(kNap);
      if (may_run_only_on(here)) ++taken;
      ++done;
      while (done < kHelpers) std::this_thread::sleep_for(kNap);
    });
  })
      .join();
  EXPECT_EQ(taken, 1);
}

// Few tasks wake few helpers; a job for all members still reaches those that slept on.
TEST(TeamTasks, HelpersThatAreNotWokenMissNoJob) {
  Team team(6, Team::Placement::kOwn);
  for (int round = 0; round < 20; ++round) {
    std::this_thread::sleep_for(std::chrono::milliseconds(2));  // they sleep now
    std::atomic<int> done{0}, members{0};
    team.run_tasks(2, [&](int, int64_t) { ++done; });
    ASSERT_EQ(done, 2);
    team.run([&](int) { ++members; });
    ASSERT_EQ(members, 6);
  }
}

}  // namespace
}  // namespace mortise
