// Ranks that are killed, stopped, slow, missing or wrong, as processes: the others end in time and name them.
#include <fmt/core.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <deque>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "dist/gloo/c10d_store.h"
#include "foundation/base/cpus.h"
#include "rank_processes.h"
#include "support/temp_dir.h"

namespace mortise {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using testing::HasSubstr;

constexpr int kRankFailureCode = 7;

int num_rounds(int short_run, int long_run) { return std::getenv("MORTISE_LONG") != nullptr ? long_run : short_run; }

TEST(Processes, RunToTheEnd) {
  for (const int size : {2, 3, 4}) {
    RankProcesses ranks(size, {"50"});
    for (int rank = 0; rank < size; ++rank) {
      EXPECT_EQ(ranks.code(rank, seconds(300)), 0) << ranks.output(rank);
      EXPECT_EQ(ranks.output(rank),
                fmt::format("joined {} of {}, processors: {}\ndone\n", rank, size, std::max(1, usable_cpus() / size)));
    }
  }
}

TEST(Processes, MeetThroughAFile) {
  const test::TempDir folder;
  const std::string file = (folder / "store").string();
  RankProcesses ranks(3, {"20"}, {{"STORE_FILE", file}});
  for (int rank = 0; rank < 3; ++rank) EXPECT_EQ(ranks.code(rank, seconds(300)), 0) << ranks.output(rank);
}

// kill -9 of every rank at moments that a seed chooses, the one that serves the store as well.
TEST(Processes, KilledAtAnyMomentAreNamedByAllSurvivors) {
  constexpr int kSize = 4;
  std::mt19937 random(20260);
  for (int round = 0; round < num_rounds(4, 100); ++round) {
    const int victim = round % kSize;
    const auto moment = milliseconds(random() % 700);
    SCOPED_TRACE(fmt::format("round {}: rank {} after {} ms", round, victim, moment.count()));
    RankProcesses ranks(kSize, {"0", std::to_string(static_cast<int>(random() % 5)), "30"});
    ranks.wait_until_joined();
    std::this_thread::sleep_for(moment);
    ranks.send(victim, SIGKILL);
    EXPECT_EQ(ranks.code(victim, seconds(300)), -SIGKILL);
    for (int rank = 0; rank < kSize; ++rank) {
      if (rank == victim) continue;
      EXPECT_EQ(ranks.code(rank, seconds(300)), kRankFailureCode) << ranks.output(rank);
      EXPECT_THAT(ranks.output(rank), HasSubstr(fmt::format("rank {} (process {} on ", victim, ranks.pid(victim))));
      EXPECT_THAT(ranks.output(rank), HasSubstr(") was killed or crashed in '"));
    }
  }
}

// Each rank tells the others that it is done, and ends when all are. Some may be gone while others still read that.
TEST(Processes, KilledWhileTheRunEndsAreNamedByThoseThatAreNotDone) {
  constexpr int kSize = 4;
  std::mt19937 random(20262);
  RankProcesses straight(kSize, {"20"});
  straight.wait_until_joined();
  const auto joined = std::chrono::steady_clock::now();
  for (int rank = 0; rank < kSize; ++rank) EXPECT_EQ(straight.code(rank, seconds(300)), 0) << straight.output(rank);
  const auto run = std::chrono::duration_cast<std::chrono::microseconds>(std::chrono::steady_clock::now() - joined);
  for (int round = 0; round < num_rounds(12, 200); ++round) {
    const int victim = round % 2 == 0 ? 0 : 1 + round / 2 % (kSize - 1);  // rank 0 serves the store
    const std::chrono::microseconds moment(random() % static_cast<uint64_t>(run.count()));
    SCOPED_TRACE(fmt::format("round {}: rank {} after {} us", round, victim, moment.count()));
    RankProcesses ranks(kSize, {"20"});
    ranks.wait_until_joined();
    std::this_thread::sleep_for(moment);
    ranks.send(victim, SIGKILL);
    const int code = ranks.code(victim, seconds(300));
    EXPECT_TRUE(code == -SIGKILL || code == 0) << code;
    for (int rank = 0; rank < kSize; ++rank) {
      if (rank == victim || ranks.code(rank, seconds(300)) == 0) continue;
      EXPECT_EQ(code, -SIGKILL) << ranks.output(rank);
      EXPECT_EQ(ranks.code(rank, seconds(300)), kRankFailureCode) << ranks.output(rank);
      EXPECT_THAT(ranks.output(rank), HasSubstr(fmt::format("rank {} (process {} on ", victim, ranks.pid(victim))));
    }
  }
}

// A kill inside an exchange of neighbours, also for ranks that wait in another group or in none.
TEST(Processes, KilledInAGroupAreNamedByAllSurvivors) {
  constexpr int kSize = 4;
  for (const int victim : {1, 2}) {
    RankProcesses ranks(kSize, {"0", std::to_string(victim), "6000000"}, {{"GROUP_SIZE", "2"}});
    const int neighbour = victim == 1 ? 0 : 3;
    ranks.wait_for(neighbour, "exchanges in step 2");
    ranks.send(victim, SIGKILL);
    for (int rank = 0; rank < kSize; ++rank) {
      if (rank == victim) continue;
      EXPECT_EQ(ranks.code(rank, seconds(300)), kRankFailureCode) << ranks.output(rank);
      EXPECT_THAT(ranks.output(rank), HasSubstr(fmt::format("rank {} (process {} on ", victim, ranks.pid(victim))));
      EXPECT_THAT(ranks.output(rank), HasSubstr(") was killed or crashed in '"));
    }
    EXPECT_THAT(ranks.output(neighbour),
                HasSubstr(fmt::format("this rank ({}) was in 'sequence parallel'", neighbour)));
  }
}

TEST(Processes, ASlowRankOfAGroupIsNamed) {
  RankProcesses ranks(4, {"3", "1", "6000000"}, {{"WAIT_MS", "3000"}, {"GROUP_SIZE", "2"}});
  EXPECT_EQ(ranks.code(0, seconds(300)), kRankFailureCode);
  EXPECT_THAT(ranks.output(0), HasSubstr("rank 1 (process "));
  EXPECT_THAT(ranks.output(0), HasSubstr("is still in 'layers' of step 2; this rank (0) was in '"));
}

// SIGSTOP: the process is there, its connections are open, and it says nothing.
TEST(Processes, StoppedAreNamedByAllOthers) {
  constexpr int kSize = 3;
  std::mt19937 random(20261);
  for (int round = 0; round < num_rounds(1, 10); ++round) {
    std::deque<RankProcesses> groups;  // one for each victim: they wait together
    for (int victim = 0; victim < kSize; ++victim)
      groups.emplace_back(kSize, std::vector<std::string>{"0", "1", "20"}, Environment{{"ANSWER_MS", "10000"}});
    for (int victim = 0; victim < kSize; ++victim) {
      groups[static_cast<size_t>(victim)].wait_until_joined();
      std::this_thread::sleep_for(milliseconds(random() % 700));
      groups[static_cast<size_t>(victim)].send(victim, SIGSTOP);
    }
    for (int victim = 0; victim < kSize; ++victim) {
      SCOPED_TRACE(fmt::format("round {}: rank {}", round, victim));
      RankProcesses& ranks = groups[static_cast<size_t>(victim)];
      for (int rank = 0; rank < kSize; ++rank) {
        if (rank == victim) continue;
        EXPECT_EQ(ranks.code(rank, seconds(300)), kRankFailureCode) << ranks.output(rank);
        EXPECT_THAT(ranks.output(rank), HasSubstr(fmt::format("rank {} (process {} on ", victim, ranks.pid(victim))));
        EXPECT_THAT(ranks.output(rank), HasSubstr(") has not answered for "));
      }
      ranks.send(victim, SIGCONT);
      EXPECT_EQ(ranks.code(victim, seconds(300)), kRankFailureCode) << "it learns that it was given up";
    }
  }
}

TEST(Processes, ThatStopForLessThanTheLimitGoOn) {
  RankProcesses ranks(2, {"200", "1", "10"}, {{"ANSWER_MS", "20000"}});
  ranks.wait_until_joined();
  for (const int rank : {1, 0}) {
    ranks.send(rank, SIGSTOP);
    std::this_thread::sleep_for(milliseconds(1500));
    ranks.send(rank, SIGCONT);
  }
  EXPECT_EQ(ranks.code(0, seconds(300)), 0) << ranks.output(0);
  EXPECT_EQ(ranks.code(1, seconds(300)), 0) << ranks.output(1);
}

TEST(Processes, SlowRanksAreWaitedForUntilTheLimit) {
  RankProcesses patient(2, {"1", "1", "12000"}, {{"WAIT_MS", "600000"}, {"ANSWER_MS", "10000"}});
  RankProcesses ranks(2, {"2", "1", "6000000"}, {{"WAIT_MS", "3000"}});
  EXPECT_EQ(patient.code(0, seconds(300)), 0) << "a rank that answers is not taken for hung: " << patient.output(0);
  EXPECT_EQ(ranks.code(0, seconds(300)), kRankFailureCode);
  EXPECT_THAT(ranks.output(0), HasSubstr("is still in 'rollout' of step 1; this rank (0) was in 'metrics'"));
  EXPECT_EQ(ranks.code(1, seconds(300)), kRankFailureCode) << "its watch ends it, though its main thread sleeps";
  EXPECT_THAT(ranks.output(1), HasSubstr("rank 1 ends while it works; its threads were here:\nthread "));
  EXPECT_THAT(ranks.output(1), HasSubstr("(main):\n")) << "the main thread's stack";
  EXPECT_THAT(ranks.output(1), HasSubstr("nanosleep"));
  EXPECT_THAT(ranks.output(1), HasSubstr("the other ranks have given this rank up: ranks waited"));
}

// Whichever rank it is: one that ends at once after its error is not taken for killed.
TEST(Processes, AnErrorOfOneRankReachesTheOthers) {
  constexpr int kSize = 3;
  for (int round = 0; round < num_rounds(2 * kSize, 60); ++round) {
    const int failing = round % kSize;
    SCOPED_TRACE(fmt::format("round {}: rank {}", round, failing));
    RankProcesses ranks(kSize, {"0"}, {{"FAIL_RANK", std::to_string(failing)}});
    EXPECT_EQ(ranks.code(failing, seconds(300)), 3) << ranks.output(failing);
    for (int rank = 0; rank < kSize; ++rank) {
      if (rank == failing) continue;
      EXPECT_EQ(ranks.code(rank, seconds(300)), kRankFailureCode);
      EXPECT_THAT(ranks.output(rank), HasSubstr("ended in 'rollout' of step 3 with an error: data.jsonl:7: row 7 has "
                                                "no prompt; this rank"));
    }
  }
}

TEST(Processes, MissingRanksAreNamed) {
  RankProcesses ranks(1, {"1"}, {{"WORLD_SIZE", "3"}, {"JOIN_MS", "1500"}});
  EXPECT_EQ(ranks.code(0, seconds(300)), kRankFailureCode);
  EXPECT_THAT(ranks.output(0), HasSubstr("2 of 3 ranks did not come to 127.0.0.1:"));
  EXPECT_THAT(ranks.output(0), HasSubstr(" within 1.5 s: rank 1, rank 2; "));
  EXPECT_THAT(ranks.output(0), HasSubstr("waiting for 2 of 3 ranks to come to 127.0.0.1:"));
  EXPECT_THAT(ranks.output(0), HasSubstr(", at most 1.5 s (ranks.join_timeout): rank 1, rank 2\n"));
}

// Waits until the rank has come to the store.
void wait_until_there(StorePlace place, int rank) {
  place.prefix = "mortise/0/0/";  // as all ranks of a group that torchrun has not started
  const auto store = connect_store(place, seconds(300));
  ASSERT_TRUE(store.ok()) << store.error().to_string();
  for (int i = 0; i < 15'000; ++i) {
    const auto is_there = (*store)->has(fmt::format("join/{}", rank));
    ASSERT_TRUE(is_there.ok()) << is_there.error().to_string();
    if (*is_there) return;
    std::this_thread::sleep_for(milliseconds(20));
  }
  FAIL() << "rank " << rank << " has not come";
}

// Rank 2 never comes, and one of the others gives up before the other one does.
TEST(Processes, ARankThatGivesUpJoiningTellsTheOthersWhy) {
  const test::TempDir folder;
  StorePlace place;
  place.file = (folder / "store").string();
  Environment environment{{"WORLD_SIZE", "3"}, {"STORE_FILE", place.file}, {"JOIN_MS", "300000"}};
  RankProcesses ranks(1, {"1"}, environment);
  wait_until_there(place, 0);
  environment.insert({{"RANK", "1"}, {"MASTER_ADDR", "127.0.0.1"}, {"MASTER_PORT", "29500"}});
  environment["JOIN_MS"] = "1500";
  ranks.start(1, {"1"}, environment, "");
  EXPECT_EQ(ranks.code(1, seconds(300)), kRankFailureCode);
  EXPECT_THAT(ranks.output(1), HasSubstr("1 of 3 ranks did not come to "));
  EXPECT_EQ(ranks.code(0, seconds(300)), kRankFailureCode);
  EXPECT_THAT(ranks.output(0), HasSubstr(fmt::format("rank 1 (process {}) ended while the ranks joined, with an error: "
                                                     "start: 1 of 3 ranks did not come to ",
                                                     ranks.pid(1))));
}

TEST(Processes, AStoreThatEndsWhileTheRanksJoinIsNamed) {
  const auto port = free_port();
  ASSERT_TRUE(port.ok());
  RankProcesses ranks(2, {"1"},
                      {{"WORLD_SIZE", "3"}, {"JOIN_MS", "300000"}, {"MASTER_PORT", std::to_string(port->number)}});
  StorePlace place;
  place.address = "127.0.0.1";
  place.port = port->number;
  wait_until_there(place, 1);
  ranks.send(0, SIGKILL);
  EXPECT_EQ(ranks.code(1, seconds(300)), kRankFailureCode);
  EXPECT_THAT(ranks.output(1), HasSubstr("start: rank 0, which serves the store at 127.0.0.1:"));
  EXPECT_THAT(ranks.output(1), HasSubstr(", has closed its connections while the ranks joined: "));
}

TEST(Processes, TwoWithOneRankAreRefused) {
  const test::TempDir folder;
  const Environment environment{{"WORLD_SIZE", "3"}, {"JOIN_MS", "8000"}, {"STORE_FILE", (folder / "store").string()}};
  RankProcesses ranks(2, {"1"}, [&] {
    Environment same = environment;
    same["RANK"] = "1";
    return same;
  }());
  const int first = ranks.code(0, seconds(300));
  const int second = ranks.code(1, seconds(300));
  EXPECT_EQ(first, kRankFailureCode);
  EXPECT_EQ(second, kRankFailureCode);
  EXPECT_THAT(ranks.output(0) + ranks.output(1), HasSubstr("or two processes are rank 1"));
}

// Runs a command with its output in a file. Returns its exit code.
int run_command(const std::string& command, const test::TempDir& folder) {
  const int status = std::system((command + " > " + (folder / "out").string() + " 2>&1").c_str());
  return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

// The launcher of the pinned PyTorch: it serves the store, and starts the ranks again after a failure.
TEST(Processes, StartedByTorchrun) {
  const char* python = std::getenv("MORTISE_ORACLES_PYTHON");
  if (python == nullptr) GTEST_SKIP() << "MORTISE_ORACLES_PYTHON is not set: torchrun did not start ranks";
  const test::TempDir folder;
  const std::string torchrun =
      fmt::format("{} -m torch.distributed.run --no-python --standalone --nproc-per-node 3 --max-restarts 1 ", python);
  const std::string program = std::string(MORTISE_BINARY_DIR) + "/tests/rank_program";
  EXPECT_EQ(run_command(torchrun + program + " 20", folder), 0) << folder.read("out");
  const std::string out = folder.read("out");
  for (int rank = 0; rank < 3; ++rank) EXPECT_THAT(out, HasSubstr(fmt::format("joined {} of 3", rank)));
  const std::string once =
      fmt::format("sh -c '[ $TORCHELASTIC_RESTART_COUNT = 0 ] && export FAIL_RANK=1; exec {} 20'", program);
  EXPECT_EQ(run_command(torchrun + once, folder), 0) << "the second attempt must not read the first one's keys\n"
                                                     << folder.read("out");
  EXPECT_THAT(folder.read("out"), HasSubstr("row 7 has no prompt"));
}

TEST(Processes, NobodyAtTheAddress) {
  RankProcesses ranks(1, {"1"}, {{"RANK", "1"}, {"WORLD_SIZE", "2"}, {"JOIN_MS", "1500"}});
  EXPECT_EQ(ranks.code(0, seconds(300)), kRankFailureCode);
  EXPECT_THAT(ranks.output(0), HasSubstr("start: rank 1 did not reach the store at 127.0.0.1:"));
  EXPECT_THAT(ranks.output(0), HasSubstr("check MASTER_ADDR, MASTER_PORT and that rank 0 runs"));
}

// It accepts connections, and says nothing.
TEST(Processes, AnotherProgramAtThePort) {
  auto port = free_port();
  ASSERT_TRUE(port.ok());
  const int other = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  const int yes = 1;
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  address.sin_port = htons(static_cast<uint16_t>(port->number));
  ASSERT_EQ(setsockopt(other, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes), 0);
  ASSERT_EQ(bind(other, reinterpret_cast<sockaddr*>(&address), sizeof address), 0);
  ASSERT_EQ(listen(other, 8), 0);
  RankProcesses ranks(2, {"1"}, {{"JOIN_MS", "1500"}, {"MASTER_PORT", std::to_string(port->number)}});
  EXPECT_EQ(ranks.code(0, seconds(300)), kRankFailureCode);
  EXPECT_THAT(ranks.output(0), HasSubstr("start: rank 0 cannot serve the store at 127.0.0.1:"));
  EXPECT_THAT(ranks.output(0), HasSubstr("choose another MASTER_PORT for all ranks"));
  EXPECT_EQ(ranks.code(1, seconds(300)), kRankFailureCode);
  EXPECT_THAT(ranks.output(1), HasSubstr("start: rank 1 did not reach the store at 127.0.0.1:"));
  EXPECT_THAT(ranks.output(1), HasSubstr("a program listens there, but it does not answer as the store of a run does"));
  close(other);
}

// The rank that serves the store needs the name too.
TEST(Processes, NameWithoutAnAddress) {
  for (const char* rank : {"0", "1"}) {
    RankProcesses ranks(1, {"1"},
                        {{"RANK", rank}, {"WORLD_SIZE", "2"}, {"JOIN_MS", "1500"}, {"MASTER_ADDR", "no-host.invalid"}});
    EXPECT_EQ(ranks.code(0, seconds(300)), kRankFailureCode);
    EXPECT_THAT(ranks.output(0), HasSubstr("this rank looks for it for 1.5 s (ranks.join_timeout)"));
    EXPECT_THAT(ranks.output(0),
                HasSubstr(fmt::format("start: rank {} did not find the host of the store at no-host.invalid:", rank)));
    EXPECT_THAT(ranks.output(0), HasSubstr("(when the rank began); the last try: "));
    EXPECT_THAT(ranks.output(0), HasSubstr("set MASTER_ADDR to the name or the address of rank 0's host"));
  }
}

}  // namespace
}  // namespace mortise
