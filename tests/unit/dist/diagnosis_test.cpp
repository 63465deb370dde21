// Who is to blame, in every staged case.
#include "dist/watch/diagnosis.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <thread>
#include <utility>
#include <vector>

namespace mortise {
namespace {

RankView view_of(const std::string& description, const std::string& stage, int64_t step, int64_t calls) {
  RankView view;
  view.description = description;
  view.state.stage = stage;
  view.state.step = step;
  view.state.calls = calls;
  return view;
}

class Diagnosis : public testing::Test {
 protected:
  std::vector<RankView> ranks{view_of("rank 0", "gradients", 12, 7), view_of("rank 1", "gradients", 12, 7),
                              view_of("rank 2", "rollout", 12, 6)};
  WatchLimits limits;
  Situation s = [] {
    Situation situation;
    situation.rank = 1;
    situation.calls = 7;
    situation.waits = true;
    situation.store_rank = 0;
    situation.store_address = "node0:29500";
    return situation;
  }();

  std::optional<Verdict> verdict() {
    s.ranks = ranks;
    return diagnose(s, limits);
  }
};

TEST_F(Diagnosis, NothingWhileAllAnswer) {
  s.waited_s = 1700;
  ranks[2].silent_s = 29;
  EXPECT_EQ(verdict(), std::nullopt);
}

TEST_F(Diagnosis, ARankThatReportedAnError) {
  ranks[2].state.status = RankStatus::kFailed;
  ranks[2].state.error = "data.jsonl:7: no prompt";
  EXPECT_EQ(verdict(), (Verdict{2, "rank 2 ended in 'rollout' of step 12 with an error: data.jsonl:7: no prompt"}));
}

TEST_F(Diagnosis, AProcessThatIsNoMore) {
  ranks[2].has_ended = true;
  EXPECT_EQ(verdict(), std::nullopt) << "its last words may not be here yet";
  ranks[2].is_final = true;
  EXPECT_EQ(verdict(), (Verdict{2, "rank 2 was killed or crashed in 'rollout' of step 12"}));
}

// At the end of a run, ranks that are done end. Whose end was not read is not to blame, but the rank that served the store.
TEST_F(Diagnosis, AProcessWhoseLastStateWasLostWithTheStore) {
  for (const int rank : {1, 2}) {
    s.rank = rank;
    for (const RankStatus own : {RankStatus::kRunning, RankStatus::kLeft}) {
      ranks[static_cast<size_t>(rank)].state.status = own;
      RankView& done = ranks[static_cast<size_t>(3 - rank)];
      done.has_ended = true;
      s.store_lost = false;
      EXPECT_EQ(verdict(), std::nullopt) << rank;
      s.store_lost = true;
      EXPECT_EQ(verdict()->rank, 0) << rank;
      ranks[0].has_ended = true;
      EXPECT_EQ(verdict(), (Verdict{0, "rank 0 was killed or crashed in 'gradients' of step 12"})) << rank;
      ranks[0].state.status = RankStatus::kLeft;
      EXPECT_EQ(verdict(), (Verdict{0, "rank 0 has closed its connections: it was last in 'gradients' of step 12"}));
      ranks[0].state.status = RankStatus::kRunning;
      ranks[0].has_ended = done.has_ended = false;
    }
    ranks[static_cast<size_t>(rank)].state.status = RankStatus::kRunning;
  }
}

TEST_F(Diagnosis, ARankThatStoppedForAnotherIsNotToBlame) {
  ranks[0].state.status = RankStatus::kStopped;
  ranks[0].has_ended = true;
  EXPECT_EQ(verdict(), std::nullopt);
  ranks[2].silent_s = 31;
  EXPECT_EQ(verdict()->rank, 2);
}

TEST_F(Diagnosis, ASilentRankIsNamedAfterTheLimitAndSoonerIfAConnectionClosed) {
  ranks[2].silent_s = 31;
  EXPECT_EQ(verdict(), (Verdict{2, "rank 2 has not answered for 31 s: it was last in 'rollout' of step 12"}));
  ranks[2].silent_s = 6;
  EXPECT_EQ(verdict(), std::nullopt);
  s.call_failed = true;
  EXPECT_EQ(verdict()->rank, 2);
  ranks[0].silent_s = 9;
  EXPECT_EQ(verdict()->rank, 0) << "the longest silent one";
}

TEST_F(Diagnosis, TheRankThatServesTheStore) {
  s.store_silent_s = 31;
  EXPECT_EQ(verdict(), (Verdict{0, "rank 0 has not answered for 31 s: it was last in 'gradients' of step 12"}));
  s.store_silent_s = 0;
  s.store_lost = true;
  EXPECT_EQ(verdict(), (Verdict{0, "rank 0 has closed its connections: it was last in 'gradients' of step 12"}));
  s.store_rank = -1;
  EXPECT_EQ(verdict(), (Verdict{-1, "the store of the group at node0:29500 has closed its connections"}));
  ranks[2].has_ended = ranks[2].is_final = true;
  EXPECT_EQ(verdict()->rank, 2) << "what is certain comes first";
}

// The last answer of the store held no news of rank 2, so its silence reaches the limit before that of the store.
TEST_F(Diagnosis, WhileTheStoreIsSilentNoOtherRankIsToBlame) {
  s.store_silent_s = 29.9;
  ranks[0].silent_s = 29.9;
  ranks[2].silent_s = 30.1;
  EXPECT_EQ(verdict(), std::nullopt);
  s.store_silent_s = 30.1;
  ranks[2].silent_s = 30.3;
  EXPECT_EQ(verdict()->rank, 0);
  s.call_failed = true;
  s.store_silent_s = 4.9;
  ranks[0].silent_s = 4.9;
  ranks[2].silent_s = 5.1;
  EXPECT_EQ(verdict(), std::nullopt);
  s.store_silent_s = 5.1;
  EXPECT_EQ(verdict()->rank, 0);
  s.store_silent_s = 1;
  ranks[0].silent_s = 1;
  ranks[2].silent_s = 11;
  EXPECT_EQ(verdict()->rank, 2) << "the store answered for ten seconds without news of it";
}

TEST_F(Diagnosis, ARankThatLivesButDoesNotArrive) {
  s.waited_s = 1801;
  EXPECT_EQ(verdict(), (Verdict{2, "ranks waited 1801 s: rank 2 is still in 'rollout' of step 12"}));
  ranks[2].state.calls = 7;
  ranks[0].state.waits = true;
  EXPECT_EQ(verdict(), (Verdict{2, "ranks waited 1801 s: rank 2 is still in 'rollout' of step 12"}))
      << "calls of some ranks only are not counted";
  ranks[2].state.waits = true;
  EXPECT_EQ(verdict(), (Verdict{-1, "all ranks wait for each other for 1801 s in the same collective"}));
  s.waits = false;
  EXPECT_EQ(verdict(), std::nullopt) << "this rank computes";
}

// Rank 0 shares a pass with rank 2 and waits for it: both are late, and only rank 2 is to blame.
TEST_F(Diagnosis, ALateRankThatWaitsForAnotherIsNotToBlame) {
  ranks[0].state.calls = 6;
  ranks[0].state.waits = true;
  s.waited_s = limits.wait_s + 1;
  ASSERT_TRUE(verdict());
  EXPECT_EQ(verdict()->rank, 2);
}

TEST_F(Diagnosis, WhoIsLateAndWhoIsAwaited) {
  s.ranks = ranks;
  EXPECT_EQ(late_ranks_text(s), "rank 2 is still in 'rollout' of step 12");
  EXPECT_FALSE(is_awaited(s)) << "this rank waits itself";
  s.rank = 2;
  s.calls = 6;
  s.waits = false;
  EXPECT_FALSE(is_awaited(s)) << "nobody waits yet";
  ranks[0].state.waits = true;
  EXPECT_TRUE(is_awaited(s));
  ranks[0].has_ended = true;
  EXPECT_FALSE(is_awaited(s)) << "only the living count";
  ranks[0].has_ended = false;
  s.calls = 8;
  EXPECT_FALSE(is_awaited(s)) << "this rank is ahead";
}

// A lost message: nobody is late.
TEST_F(Diagnosis, AllRanksWaitInOneCall) {
  s.waited_s = 50;
  s.waits_in = "gradients";
  for (RankView& view : ranks) {
    view.state.stage = "gradients";
    view.state.waits = true;
    view.state.calls = 7;
    view.waits_s = 46;
  }
  const auto text = [&] {
    s.ranks = ranks;
    return all_wait_text(s, 45);
  };
  EXPECT_EQ(text(), "rank 0, rank 2");
  ranks[2].waits_s = 44;
  EXPECT_EQ(text(), "") << "not yet";
  ranks[2].waits_s = 46;
  ranks[2].state.stage = "completions";
  EXPECT_EQ(text(), "") << "another thread of rank 2 waits";
  ranks[2].state.stage = "gradients";
  ranks[2].state.calls = 6;
  EXPECT_EQ(text(), "") << "rank 2 is late";
  ranks[2].state.calls = 7;
  s.waited_s = 44;
  EXPECT_EQ(text(), "");
}

// A message is lost between the ranks 0 and 1. The ranks 2 and 3 work, in calls of their own: they are neither named
// nor blamed, whether a message shows them in such a call or not.
TEST_F(Diagnosis, AllRanksOfAGroupWaitInOneCall) {
  ranks = std::vector<RankView>(4, view_of("", "sequence parallel", 12, 7));
  for (size_t i = 0; i < ranks.size(); ++i) {
    ranks[i].description = "rank " + std::to_string(i);
    ranks[i].state.waits = true;
    ranks[i].state.awaits = {i < 2 ? 0 : 2, 1, 2};
    ranks[i].waits_s = 46;
  }
  s.waited_s = 50;
  s.waits_in = "sequence parallel";
  s.awaits = ranks[0].state.awaits;
  const auto text = [&] {
    s.ranks = ranks;
    return all_wait_text(s, 45);
  };
  EXPECT_EQ(text(), "rank 0");
  ranks[3].state.waits = false;
  ranks[3].waits_s = 0;
  EXPECT_EQ(text(), "rank 0");
  EXPECT_EQ(late_ranks_text(s), "");
  s.waited_s = limits.wait_s + 1;
  EXPECT_EQ(verdict(), (Verdict{-1, "the ranks of a group wait for each other for 1801 s in the same collective"}));
  ranks[0].waits_s = 44;
  EXPECT_EQ(text(), "") << "not yet";
  ranks[0].waits_s = 46;
  ranks[0].state.stage = "tensor parallel";
  EXPECT_EQ(text(), "") << "another call of the same ranks";
}

// Ranks 0 and 1 wait in calls of two groups, and the others of these groups wait for them: nobody can end.
TEST_F(Diagnosis, RanksWaitForEachOtherInDifferentCalls) {
  ranks = std::vector<RankView>(5, view_of("", "tensor parallel", 12, 7));
  const std::vector<RankSet> awaits{{0, 1, 2}, {1, 2, 2}, {0, 2, 2}, {2, 1, 2}, {4, 1, 1}};
  for (size_t i = 0; i < ranks.size(); ++i) {
    ranks[i].description = "rank " + std::to_string(i);
    ranks[i].state.waits = i < 4;  // rank 4 computes, and nobody waits for it
    ranks[i].state.awaits = awaits[i];
    ranks[i].waits_s = 46;
  }
  s.rank = 0;
  s.waited_s = 50;
  s.waits_in = "tensor parallel";
  s.awaits = awaits[0];
  const auto text = [&] {
    s.ranks = ranks;
    return circle_text(s, 45);
  };
  EXPECT_EQ(text(),
            "rank 1 in 'tensor parallel' for the ranks 1 and 3, rank 3 in 'tensor parallel' for the ranks 2 and 3, "
            "rank 2 in 'tensor parallel' for the ranks 0 and 2");
  EXPECT_EQ(all_wait_text(s, 45), "") << "they are not in one call";
  EXPECT_EQ(late_ranks_text(s), "") << "rank 4 is not to blame";
  s.waited_s = limits.wait_s + 1;
  ASSERT_TRUE(verdict());
  EXPECT_EQ(verdict()->rank, -1);
  EXPECT_EQ(verdict()->cause.find("ranks wait for each other in different calls, this one for 1801 s: rank 1 in "), 0U);
  ranks[3].waits_s = 44;
  EXPECT_EQ(text(), "") << "not yet";
  ranks[3].waits_s = 46;
  ranks[2].state.awaits = {};
  EXPECT_EQ(text(), "") << "rank 4 does not wait";
  ranks[2].state.waits = false;
  EXPECT_EQ(text(), "") << "rank 2 computes";
  EXPECT_EQ(late_ranks_text(s),
            "rank 2 is still in 'tensor parallel' of step 12, rank 4 is still in 'tensor parallel' of step 12");
}

// Rank 2 has waited for a moment only: rank 0 is late, and named.
TEST_F(Diagnosis, RanksThatWaitForAMomentHideNoLateRank) {
  for (RankView& view : ranks) view.state.calls = 7;
  ranks[2].state.waits = true;
  ranks[2].state.awaits = {1, 1, 2};
  ranks[2].state.stage = "tensor parallel";
  ranks[2].waits_s = 0.1;
  s.ranks = ranks;
  s.awaits = {1, 1, 2};
  s.waits_in = "sequence parallel";
  s.waited_s = 50;
  EXPECT_EQ(late_ranks_text(s), "rank 0 is still in 'gradients' of step 12");
}

// A thread of rank 1 samples with all ranks, and waits there while another one may compute.
TEST_F(Diagnosis, ACallNextToTheUpdatesIsInNoCircle) {
  for (RankView& view : ranks) {
    view.state.waits = true;
    view.waits_s = 46;
  }
  s.waited_s = 50;
  s.waits_in = "completions";
  s.awaits = {0, 1, 3, /*is_aside=*/true};
  s.ranks = ranks;
  EXPECT_EQ(circle_text(s, 45), "") << "this rank's own call";
  s.waits_in = "tensor parallel";
  s.awaits = {1, 1, 2};
  EXPECT_NE(circle_text(s, 45), "");
  ranks[2].state.awaits = {0, 1, 3, /*is_aside=*/true};
  s.ranks = ranks;
  EXPECT_EQ(circle_text(s, 45), "") << "rank 2 may compute";
}

// All ranks share the layers (T = N). Rank 0 is in such a pass, and the others are in a call of the run.
TEST_F(Diagnosis, AGroupOfAllRanksMayBeInACircle) {
  for (RankView& view : ranks) {
    view.state.waits = true;
    view.state.stage = "gradients";
    view.waits_s = 46;
  }
  s.waited_s = 50;
  s.waits_in = "tensor parallel";
  s.awaits = {0, 1, 3};
  s.ranks = ranks;
  EXPECT_EQ(circle_text(s, 45), ranks[0].description + " in 'gradients' for all ranks, " + ranks[2].description +
                                    " in 'gradients' for all ranks");
  EXPECT_EQ(all_wait_text(s, 45), "") << "they are not in one call";
  for (RankView& view : ranks) {
    view.state.stage = "tensor parallel";
    view.state.awaits = s.awaits;
  }
  s.ranks = ranks;
  EXPECT_EQ(circle_text(s, 45), "");
  EXPECT_NE(all_wait_text(s, 45), "") << "a message is lost";
}

// Rank 0 waits in a call of the ranks 0 and 2, and rank 2 hangs. Rank 1 computes.
TEST_F(Diagnosis, ACallOfSomeRanksAwaitsOnlyThese) {
  for (RankView& view : ranks) view.state.calls = 7;
  ranks[0].state.waits = true;
  ranks[0].state.awaits = {0, 2, 2};
  s.ranks = ranks;
  s.waits = false;
  EXPECT_FALSE(is_awaited(s)) << "rank 1 is not in this call";
  s.rank = 2;
  EXPECT_TRUE(is_awaited(s));
  s.rank = 0;
  s.waits = true;
  s.awaits = ranks[0].state.awaits;
  s.waited_s = limits.wait_s + 1;
  EXPECT_EQ(late_ranks_text(s), "rank 2 is still in 'rollout' of step 12");
  EXPECT_EQ(verdict()->rank, 2);
  ranks[2].state.waits = true;  // for rank 1, in another call
  ranks[2].state.awaits = {1, 1, 2};
  EXPECT_EQ(verdict()->rank, 1);
  s.awaits = {};
  ranks[0].state.awaits = {};
  ranks[2].state.waits = false;
  s.rank = 1;
  s.waits = false;
  EXPECT_FALSE(is_awaited(s)) << "this rank has begun the call too, and computes meanwhile";
}

TEST(RankSets, HaveRanksAtASteadyStep) {
  const RankSet set{1, 3, 2};
  for (int rank = 0; rank < 9; ++rank) EXPECT_EQ(set.has(rank), rank == 1 || rank == 4) << rank;
  EXPECT_TRUE(RankSet().has(77));
}

TEST_F(Diagnosis, ARankThatFinishedWhileOthersWork) {
  ranks[2].state.status = RankStatus::kLeft;
  s.waited_s = 4;
  EXPECT_EQ(verdict(), std::nullopt);
  s.waited_s = 6;
  EXPECT_EQ(verdict(), (Verdict{2, "rank 2 has finished its run while others still work"}));
}

TEST(RankTexts, ReadBack) {
  const RankState state{3, 4, 5, true, RankStatus::kFailed, "log_probs", "two\nlines", {2, 4, 8, true}, "rows=3/4", 15};
  EXPECT_EQ(decode_rank_state(encode(state)), state);
  for (const char* wrong : {"", "1\n2\n3", "1\n2\n3\nx\n0\n\n", "1\n2\n3\n1\n9\n\n"})
    EXPECT_EQ(decode_rank_state(wrong), std::nullopt) << wrong;
  RankState killed = state;
  killed.stop_signal = 9;
  EXPECT_EQ(decode_rank_state(encode(killed)), std::nullopt) << "no signal that asks for an end";
  const RankProcess process{"boot 1", "boot 2", "node1", 77, 1234, 4, "0-3,8", "cgroup:[4] /sys/fs/cgroup/a"};
  EXPECT_EQ(decode_rank_process(encode(process)), process);
  EXPECT_EQ(decode_rank_process("boot 1\n7"), std::nullopt);
  const Verdict verdict{2, "rank 2: a\nb"};
  EXPECT_EQ(decode_verdict(encode(verdict)), verdict);
  EXPECT_EQ(decode_verdict("none"), std::nullopt);
}

// A launcher may bind ranks to processors of their own, or give each a control group with a quota.
TEST(RankProcesses, ShareTheProcessorsOfTheirMachine) {
  RankProcess self = this_process(2);
  ASSERT_FALSE(self.cpus.empty());
  self.cpu_group = "cgroup:[4] /sys/fs/cgroup/a";
  RankProcess bound = self, limited = self, elsewhere = self, unknown = self;
  bound.cpus += ",999";
  limited.cpu_group = "cgroup:[4] /sys/fs/cgroup/b";
  elsewhere.machine = "another";
  unknown.machine.clear();
  const std::vector<RankProcess> all{self, bound, self, limited, elsewhere, unknown};
  const auto counts = [&](const RankProcess& one) {
    const ProcessesHere here = processes_here(all, one);
    return std::pair(here.on_cpus, here.in_quota);
  };
  EXPECT_EQ(counts(self), std::pair(3, 3));
  EXPECT_EQ(counts(bound), std::pair(1, 3));
  EXPECT_EQ(counts(limited), std::pair(3, 1));
  EXPECT_EQ(counts(elsewhere), std::pair(1, 1));
  EXPECT_EQ(counts(unknown), std::pair(1, 1)) << "nobody knows who is there";
}

// A process may end between the opening of its file and the reading.
TEST(RankProcesses, ThatEndWhileTheyAreLookedAtHaveEnded) {
  const RankProcess self = this_process(2);
  for (int i = 0; i < 100; ++i) {
    const pid_t child = fork();
    if (child == 0) {
      pause();
      _exit(0);
    }
    const RankProcess other = describe_process(child, 2);
    std::thread ends([child] {
      kill(child, SIGKILL);
      waitpid(child, nullptr, 0);
    });
    while (!has_ended(other, self)) {
    }
    while (kill(child, 0) == 0) describe_process(child, 2);
    ends.join();
  }
}

TEST(RankProcesses, OfThisMachineEndWhenTheyAreKilledAndNotReaped) {
  const RankProcess self = this_process(2);
  EXPECT_FALSE(has_ended(self, self));
  const pid_t child = fork();
  if (child == 0) {
    pause();
    _exit(0);
  }
  const RankProcess other = describe_process(child, 2);
  EXPECT_FALSE(has_ended(other, self));
  RankProcess reused = other;
  reused.start_ticks -= 1;
  EXPECT_TRUE(has_ended(reused, self)) << "another process has its id now";
  reused.machine = "another";
  EXPECT_FALSE(has_ended(reused, self)) << "it cannot be seen from here";
  ASSERT_EQ(kill(child, SIGKILL), 0);
  siginfo_t info;
  ASSERT_EQ(waitid(P_PID, static_cast<id_t>(child), &info, WEXITED | WNOWAIT), 0);
  EXPECT_TRUE(has_ended(other, self)) << "killed, and its parent has not asked yet";
  ASSERT_EQ(waitpid(child, nullptr, 0), child);
  EXPECT_TRUE(has_ended(other, self));
}

}  // namespace
}  // namespace mortise
