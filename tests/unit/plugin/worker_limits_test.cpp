// What a worker may do, by rlimits, affinity, CPU timer and bubblewrap, and that the log says what holds.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sched.h>

#include <cstdlib>

#include "foundation/base/log.h"
#include "plugin/worker/launcher.h"
#include "worker_fixture.h"

namespace mortise::test {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

class WorkerLimitsTest : public WorkerTest {
 protected:
  void SetUp() override {
    ASSERT_OK(log_init({.console_level = LogLevel::kOff, .file = dir_ / "log.txt", .force_plain = true}));
    const char* const path = std::getenv("PATH");
    path_ = path == nullptr ? "/usr/bin:/bin" : path;
  }
  void TearDown() override {
    ::setenv("PATH", path_.c_str(), 1);
    ASSERT_OK(log_init({}));
  }
  std::string log() const {
    log_flush();
    return dir_.read("log.txt");
  }
  // A program of that name, found before the machine's own.
  void put_bwrap(const std::string& script) {
    const Path program = dir_.write("bwrap", "#!/bin/sh\n" + script);
    std::filesystem::permissions(program, std::filesystem::perms::owner_all);
    ::setenv("PATH", (dir_.path().string() + ":" + path_).c_str(), 1);
  }

  TempDir dir_;
  std::string path_;
};

TEST_F(WorkerLimitsTest, CpuTimeIsOfACallNotOfAWorker) {
  options_.limits.cpu_ms = 200;
  auto slow = make("plain", 1, {{"work_us", 60'000'000}});  // a busy machine gives a second of it little
  ASSERT_OK_AND_ASSIGN(const RewardOutput out, slow->score(request(1, 60'000, 60'000), rows_of({"a"}), nullptr));
  EXPECT_THAT(failures(out)[0], HasSubstr("the row used more CPU than plugins.worker_cpu_time = 0.20 s"));
  EXPECT_THAT(log(), HasSubstr("0.20 s of CPU a call"));
  auto quick = make("plain", 1, {{"work_us", 60'000}});
  const std::vector<std::string> rows(12, "a");  // more than the limit together
  ASSERT_OK_AND_ASSIGN(const RewardOutput all, quick->score(request(12), rows_of(rows), nullptr));
  EXPECT_TRUE(all.failed_rows.empty()) << failures(all).begin()->second;
}

TEST_F(WorkerLimitsTest, SleepingCostsNoCpu) {
  options_.limits.cpu_ms = 100;
  ASSERT_OK_AND_ASSIGN(const RewardOutput out, make("faulty", 1)->score(request(1), rows_of({"slow400"}), nullptr));
  EXPECT_TRUE(out.failed_rows.empty());
}

TEST_F(WorkerLimitsTest, WorkersMayBeKeptToSomeProcessors) {
  cpu_set_t mine;
  ASSERT_EQ(::sched_getaffinity(0, sizeof mine, &mine), 0);
  ASSERT_OK_AND_ASSIGN(const RewardOutput all, make("probe", 1)->score(request(1), rows_of({"processors"}), nullptr));
  EXPECT_EQ(all.rewards[0], CPU_COUNT(&mine));
  options_.limits.num_cpus = 1;
  ASSERT_OK_AND_ASSIGN(const RewardOutput one, make("probe", 1)->score(request(1), rows_of({"processors"}), nullptr));
  EXPECT_EQ(one.rewards[0], 1);
  EXPECT_THAT(log(), HasSubstr("on 1 processor"));
}

TEST_F(WorkerLimitsTest, TheLogSaysWhatHolds) {
  options_.bubblewrap = false;
  options_.limits.network = options_.limits.write_files = options_.limits.start_programs = false;
  options_.limits.open_files = 64;
  make("plain", 1);
  EXPECT_THAT(log(), AllOf(HasSubstr("runs in 1 worker ("), HasSubstr("64 open files"), HasSubstr("no network"),
                           HasSubstr("writes no files"), HasSubstr("starts no programs"),
                           HasSubstr("without bubblewrap, as configured"), Not(HasSubstr("CPU"))));
  options_.limits.network = true;
  make("plain", 1);
  EXPECT_THAT(log(), HasSubstr(", network, writes no files"));
  mode_ = "none";
  make("plain");
  EXPECT_THAT(log(), HasSubstr("runs in the trainer's own process"));
}

TEST_F(WorkerLimitsTest, BubblewrapIsAskedForWhatTheLimitsSay) {
  // Notes its arguments and runs what stands behind them.
  put_bwrap("for word; do shift; [ \"$word\" = -- ] && break; echo \"$word\" >> " + (dir_ / "asked").string() +
            "; done\nexec \"$@\"\n");
  options_.limits.network = options_.limits.write_files = false;
  ASSERT_OK_AND_ASSIGN(const RewardOutput out, make("plain", 1)->score(request(1), rows_of({"abc"}), nullptr));
  EXPECT_EQ(out.rewards[0], 3);
  EXPECT_THAT(dir_.read("asked"),
              AllOf(HasSubstr("--unshare-net\n"), HasSubstr("--ro-bind\n/\n/\n"), HasSubstr("--unshare-pid\n")));
  EXPECT_THAT(log(), HasSubstr("in bubblewrap: sees no other processes, has no network, finds all files read-only"));
  std::filesystem::remove(dir_ / "asked");
  options_.limits.network = options_.limits.write_files = true;
  make("plain", 1);
  EXPECT_THAT(dir_.read("asked"),
              AllOf(Not(HasSubstr("--unshare-net")), HasSubstr("--bind\n/\n/\n"), Not(HasSubstr("--ro-bind"))));
}

TEST_F(WorkerLimitsTest, ABubblewrapThatCannotRunIsToldAndNotUsed) {
  put_bwrap("exit 1\n");
  ASSERT_OK_AND_ASSIGN(const RewardOutput out, make("plain", 1)->score(request(1), rows_of({"abc"}), nullptr));
  EXPECT_EQ(out.rewards[0], 3);
  EXPECT_THAT(log(), AllOf(HasSubstr("; bubblewrap cannot be used here)"), Not(HasSubstr("in bubblewrap"))));
}

TEST_F(WorkerLimitsTest, WithoutBubblewrapTheLogSaysSo) {
  ::setenv("PATH", dir_.path().c_str(), 1);
  make("plain", 1);
  EXPECT_THAT(log(), HasSubstr("; bubblewrap (bwrap) is not installed)"));
}

TEST_F(WorkerLimitsTest, RealBubblewrapHidesTheMachine) {
  const Path program = find_bubblewrap();
  if (program.empty()) GTEST_SKIP() << "bubblewrap is not installed: nothing was run in it";
  if (std::system((program.string() + " --unshare-pid --ro-bind / / true 2>/dev/null").c_str()) != 0)
    GTEST_SKIP() << "this machine does not let bubblewrap work: nothing was run in it";
  options_.limits.network = options_.limits.write_files = false;
  auto reward = make("probe", 2);
  ASSERT_OK_AND_ASSIGN(const RewardOutput out,
                       reward->score(request(4), rows_of({"processes", "socket", "write", "read"}), nullptr));
  EXPECT_LT(out.rewards[0], 10);  // bubblewrap, the keeper, three workers
  EXPECT_EQ(out.rewards[1], 0);
  EXPECT_EQ(out.rewards[2], 0);
  EXPECT_EQ(out.rewards[3], 1);
  EXPECT_THAT(log(), HasSubstr("in bubblewrap: sees no other processes"));
  // Crashes are blamed and workers replaced there as elsewhere.
  auto plain = make("plain", 2);
  ASSERT_OK_AND_ASSIGN(const RewardOutput some, plain->score(request(3), rows_of({"a", "crash", "bb"}), nullptr));
  EXPECT_EQ(failures(some).size(), 1U);
  EXPECT_EQ(some.rewards[2], 2);
}

}  // namespace
}  // namespace mortise::test
