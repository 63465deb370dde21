// Training runs in which a rank hangs in a step. The other one names it, and the logs have the stacks of threads.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "lost_rank.h"

namespace mortise::test {
namespace {

using testing::ContainsRegex;
using testing::HasSubstr;

// The process is there and its connections are open, but it says nothing.
TEST(HangingRanks, AStoppedRankIsNamed) { expect_lost_rank_is_named(1, SIGSTOP, silence_of_tests(), is_long()); }

TEST(HangingRanks, AStoppedRankThatServesTheStoreIsNamed) {
  expect_lost_rank_is_named(0, SIGSTOP, silence_of_tests(), is_long());
}

// A rank whose worker stops never comes to the next collective, but its process lives: it says where its threads are. The
// long test also waits until the logs say so while the run still waits.
TEST(HangingRanks, ARankThatWaitsForAStoppedWorkerIsNamed) {
  std::vector<std::string> settings = with_isolation("process");
  settings.emplace_back(is_long() ? "ranks.wait_timeout=55s" : "ranks.wait_timeout=20s");
  TwoRanks ranks(settings);
  ASSERT_TRUE(ranks.wait_for_a_step()) << ranks.group().text_of(0) << ranks.group().text_of(1);
  int num_stopped = 0;
  for (const pid_t supervisor : children_of(ranks[1].pid())) {
    for (const pid_t worker : children_of(supervisor)) num_stopped += kill(worker, SIGSTOP) == 0 ? 1 : 0;
  }
  ASSERT_GT(num_stopped, 0);
  EXPECT_EQ(ranks[0].wait(), 7);
  EXPECT_EQ(ranks[1].wait(), 7);
  EXPECT_THAT(ranks.group().text_of(0), ContainsRegex("ranks waited [0-9]+ s: rank 1 "));
  EXPECT_THAT(ranks.group().text_of(0), HasSubstr(ranks.name_of(1)));
  EXPECT_THAT(ranks.log_of(1), HasSubstr("the other ranks have given this rank up"));
  EXPECT_THAT(ranks.log_of(1), ContainsRegex("rank 1 ends while it works; its threads were here:\n[^\n]*thread "));
  if (!is_long()) return;
  EXPECT_THAT(ranks.log_of(0), ContainsRegex("this rank \\(0\\) has waited [0-9]+ s in [^\n]*: rank 1 "));
  EXPECT_THAT(ranks.log_of(1), ContainsRegex("the threads of rank 1 are here:\n[^\n]*thread "));
}

}  // namespace
}  // namespace mortise::test
