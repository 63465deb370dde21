// What a worker may do, by rlimits, affinity, CPU timer and bubblewrap; and that the log says which limits hold.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstdlib>
#include <fstream>

#include "foundation/base/log.h"
#include "plugin/worker/environment.h"
#include "plugin/worker/launcher.h"
#include "support/processes.h"
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
  // Why nothing can be run in bubblewrap here; empty: it can.
  static std::string no_bubblewrap() {
    const Path program = find_bubblewrap();
    if (program.empty()) return "bubblewrap is not installed: nothing was run in it";
    const bool works = std::system((program.string() + " --unshare-pid --ro-bind / / true 2>/dev/null").c_str()) == 0;
    return works ? "" : "this machine does not let bubblewrap work: nothing was run in it";
  }
  // All processes below this one, parents before their children.
  static std::vector<pid_t> descendants() {
    std::vector<pid_t> all{::getpid()};
    for (size_t i = 0; i < all.size(); ++i) {
      const Path tasks = Path("/proc") / std::to_string(all[i]) / "task";
      std::error_code gone;
      for (const auto& task : std::filesystem::directory_iterator(tasks, gone)) {
        std::ifstream children(task.path() / "children");
        for (pid_t child = 0; children >> child;) all.push_back(child);
      }
    }
    all.erase(all.begin());
    return all;
  }
  static std::string name_of(pid_t pid) {
    std::ifstream file(Path("/proc") / std::to_string(pid) / "comm");
    std::string name;
    std::getline(file, name);
    return name;
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
  auto slow = make("plain", 1, {{"work_us", 3'600'000'000}});  // a busy machine gives a second of it little
  ASSERT_OK_AND_ASSIGN(const RewardOutput out, slow->score(request(1, 0, 0), rows_of({"a"}), nullptr));
  EXPECT_THAT(failures(out)[0], HasSubstr("the row used more CPU than plugins.worker_cpu_time = 0.20 s"));
  EXPECT_THAT(log(), HasSubstr("0.20 s of CPU a call"));
  auto group = make("whole_group", 1);
  ASSERT_OK_AND_ASSIGN(const RewardOutput two, group->score(request(2, 0, 0), rows_of({"spin", "a"}, 2), nullptr));
  EXPECT_THAT(failures(two)[1], HasSubstr("group 0 (2 rows) used more CPU than plugins.worker_cpu_time = 0.20 s"));
  auto quick = make("plain", 1, {{"work_us", 60'000}});
  const std::vector<std::string> rows(12, "a");  // more than the limit together
  ASSERT_OK_AND_ASSIGN(const RewardOutput all, quick->score(request(12), rows_of(rows), nullptr));
  EXPECT_TRUE(all.failed_rows.empty()) << failures(all).begin()->second;
}

TEST_F(WorkerLimitsTest, AMemoryLimitWithoutRoomForTheWorkerIsToldWithItsNeed) {
  if (test::kSanitized) GTEST_SKIP() << "memory has no limit under a sanitizer";
  options_.mode = Isolation::kProcess;
  options_.limits.memory_bytes = 1 << 20;
  options_.limits.memory_where = "run.toml:3:21";
  const auto made = make_reward_function(registry_, "plain", nlohmann::ordered_json::object(), {}, options_);
  ASSERT_FALSE(made.ok());
  EXPECT_EQ(made.error().kind, ErrorKind::kConfig);
  const std::string text = made.error().to_string();
  const std::string begins =
      "run.toml:3:21: plugins.worker_memory_mib = 1 leaves no room for the worker itself, which needs ";
  ASSERT_THAT(text, testing::StartsWith(begins));
  EXPECT_THAT(text, HasSubstr("or 0 for no limit"));
  // What it says is enough, and not much more than that.
  const int64_t need = std::atoll(text.c_str() + begins.size());
  EXPECT_LT(need, 200);
  options_.limits.memory_bytes = need << 20;
  ASSERT_OK_AND_ASSIGN(const RewardOutput out, make("plain", 1)->score(request(1), rows_of({"abc"}), nullptr));
  EXPECT_EQ(out.rewards[0], 3);
  // A worker that ends before it is ready may have hit the limit, so the message names it.
  options_.limits.memory_bytes = int64_t{1} << 30;
  const auto dead = make_reward_function(registry_, "faulty", {{"dies_in_create", 1}}, {}, options_);
  ASSERT_FALSE(dead.ok());
  EXPECT_THAT(dead.error().next, HasSubstr("plugins.worker_memory_mib = 1024 (run.toml:3:21)"));
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

TEST_F(WorkerLimitsTest, SandboxesNeedTheirPermission) {
  options_.bubblewrap = false;
  ASSERT_OK_AND_ASSIGN(const RewardOutput no, make("probe", 1)->score(request(1), rows_of({"sandbox"}), nullptr));
  EXPECT_EQ(no.rewards[0], 0);
  EXPECT_THAT(log(), Not(HasSubstr("may make sandboxes")));
  options_.limits.make_sandboxes = true;
  ASSERT_OK_AND_ASSIGN(const RewardOutput yes, make("probe", 1)->score(request(1), rows_of({"sandbox"}), nullptr));
  EXPECT_EQ(yes.rewards[0], 1);
  EXPECT_THAT(log(), HasSubstr("may start programs, may make sandboxes"));
}

TEST_F(WorkerLimitsTest, TheLogSaysWhatHolds) {
  options_.bubblewrap = false;
  options_.limits.network = options_.limits.write_files = options_.limits.start_programs = false;
  options_.limits.open_files = 64;
  make("plain", 1);
  EXPECT_THAT(log(), AllOf(HasSubstr("runs in 1 worker"), HasSubstr("its workers have these limits: "),
                           HasSubstr("64 open files"), HasSubstr("no network"), HasSubstr("writes no files"),
                           HasSubstr("starts no programs"), HasSubstr("without bubblewrap, as configured"),
                           Not(HasSubstr("CPU"))));
  options_.limits.network = true;
  make("plain", 1);
  EXPECT_THAT(log(), HasSubstr(", network, writes no files"));
  mode_ = Isolation::kNone;
  make("plain");
  EXPECT_THAT(log(), HasSubstr("runs in the trainer's own process"));
}

TEST_F(WorkerLimitsTest, WhatAWorkerLogsIsInTheRunsLog) {
  ASSERT_OK(make("faulty", 1)->score(request(1), rows_of({"log"}), nullptr));
  EXPECT_THAT(log(), HasSubstr("warning [faulty@test.faulty] a line from the worker\n"));
}

TEST_F(WorkerLimitsTest, FilesAreLeftAloneInEveryWay) {
  options_.bubblewrap = options_.limits.write_files = false;
  const std::vector<std::string> ways = {"write", "touch", "chmod", "rename", "remove"};
  const Path file = dir_.write("precious", "data");
  const auto tried = [&](const Path& path) {
    auto out = make("probe", 1, {{"path", path.string()}})->score(request(5), rows_of(ways), nullptr);
    return out.ok() ? out->rewards : std::vector<double>();
  };
  EXPECT_EQ(tried(file), std::vector<double>(5, 0));
  EXPECT_EQ(dir_.read("precious"), "data");
  options_.limits.write_files = true;
  EXPECT_EQ(tried(file), (std::vector<double>{1, 1, 1, 1, 0})) << "after the renaming there is nothing to remove";
}

TEST_F(WorkerLimitsTest, BubblewrapIsAskedForWhatTheLimitsSay) {
  // Records its arguments and runs the program after them.
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
  EXPECT_THAT(log(), AllOf(HasSubstr("runs in 1 worker"), HasSubstr("; bubblewrap cannot be used here\n"),
                           Not(HasSubstr("in bubblewrap"))));
}

// A reward that runs with less around it than configured is told where people look.
TEST_F(WorkerLimitsTest, AFallBackFromBubblewrapIsOnTheConsole) {
  put_bwrap("exit 1\n");
  const auto console_of = [&] {
    EXPECT_OK(log_init({.console_level = LogLevel::kInfo, .file = dir_ / "log.txt", .force_plain = true}));
    testing::internal::CaptureStderr();
    make("plain", 1);
    return testing::internal::GetCapturedStderr();
  };
  EXPECT_THAT(console_of(), AllOf(HasSubstr("runs in 1 worker (bubblewrap cannot be used here)\n"),
                                  Not(HasSubstr("its workers have these limits"))));
  options_.bubblewrap = false;
  EXPECT_THAT(console_of(), HasSubstr("runs in 1 worker (without bubblewrap, as configured)\n"));
}

TEST_F(WorkerLimitsTest, WithoutBubblewrapTheLogSaysSo) {
  ::setenv("PATH", dir_.path().c_str(), 1);
  make("plain", 1);
  EXPECT_THAT(log(), HasSubstr("runs in 1 worker (bubblewrap (bwrap) is not installed)\n"));
}

TEST_F(WorkerLimitsTest, RealBubblewrapHidesTheMachine) {
  if (const std::string without = no_bubblewrap(); !without.empty()) GTEST_SKIP() << without;
  options_.limits.network = options_.limits.write_files = false;
  auto reward = make("probe", 2);
  ASSERT_OK_AND_ASSIGN(const RewardOutput out,
                       reward->score(request(4), rows_of({"processes", "socket", "write", "read"}), nullptr));
  EXPECT_LT(out.rewards[0], 10);  // bubblewrap, the fork server, three workers
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

TEST_F(WorkerLimitsTest, RealBubblewrapGivesWhatIsAllowed) {
  if (const std::string without = no_bubblewrap(); !without.empty()) GTEST_SKIP() << without;
  const Path shared = "/dev/shm/mortise-test-" + std::to_string(::getpid());
  ASSERT_OK(write_file(default_env(), shared, "data"));
  const auto probe = [&](const Path& path) {
    auto out = make("probe", 1, {{"path", path.string()}})
                   ->score(request(5), rows_of({"see", "socket", "write", "program", "device"}), nullptr);
    return out.ok() ? out->rewards : std::vector<double>();
  };
  options_.limits.network = options_.limits.write_files = options_.limits.start_programs = false;
  EXPECT_EQ(probe(shared), (std::vector<double>{1, 0, 0, 0, 0}));
  EXPECT_THAT(log(), HasSubstr("in bubblewrap: sees no other processes, has no network, finds all files read-only"));
  options_.limits.write_files = true;
  EXPECT_EQ(probe(dir_ / "written"), (std::vector<double>{0, 0, 1, 0, 1}));
  EXPECT_TRUE(default_env().exists(dir_ / "written"));
  options_.limits.network = options_.limits.start_programs = true;
  EXPECT_EQ(probe(shared), (std::vector<double>{1, 1, 1, 1, 1}));
  EXPECT_TRUE(std::filesystem::remove(shared));
}

// A dead fork server takes its sandbox along, and another takes over; nothing outlives the reward.
TEST_F(WorkerLimitsTest, RealBubblewrapEndsWithItsForkServerAndWithTheReward) {
  if (const std::string without = no_bubblewrap(); !without.empty()) GTEST_SKIP() << without;
  auto reward = make("faulty", 1);
  ASSERT_OK(reward->score(request(1), rows_of({"a"}), nullptr));
  const std::vector<pid_t> first = descendants();
  const auto server =
      std::find_if(first.begin(), first.end(), [](pid_t pid) { return name_of(pid) == "mortise-worker"; });
  ASSERT_NE(server, first.end());
  ::kill(*server, SIGKILL);
  EXPECT_TRUE(all_end(first));
  ASSERT_OK_AND_ASSIGN(const RewardOutput out, reward->score(request(1), rows_of({"a"}), nullptr));
  EXPECT_TRUE(out.failed_rows.empty()) << out.failed_rows[0].text;
  EXPECT_THAT(log(), HasSubstr("starting it again"));
  // bubblewrap's outer process is killed. The inner process continues, and ends with the reward.
  const std::vector<pid_t> second = descendants();
  ASSERT_GE(second.size(), 4U);
  EXPECT_EQ(name_of(second[0]), "bwrap");
  ::kill(second[0], SIGKILL);
  ASSERT_OK(reward->score(request(1), rows_of({"a"}), nullptr));
  reward.reset();
  EXPECT_TRUE(all_end(second));
}

TEST(WorkerEnvironment, OnlyHarmlessVariablesAndThoseThatAreNamed) {
  const char* const all[] = {"PATH=/bin",
                             "HF_TOKEN=a",
                             "LC_ALL=C",
                             "OPENAI_API_KEY=b=c",
                             "AWS_SESSION_TOKEN=",
                             "PYTHON_TOKEN=d",
                             "OMP_NUM_THREADS=2",
                             "https_proxy=http://u:p@h",
                             "http_proxy=http://h",
                             "CUDA_VISIBLE_DEVICES=0",
                             "MORTISE_SDK_CPU=v3",
                             nullptr};
  EXPECT_THAT(
      worker_environment(all, {}),
      testing::ElementsAre("PATH=/bin", "LC_ALL=C", "OMP_NUM_THREADS=2", "http_proxy=http://h",
                           "CUDA_VISIBLE_DEVICES=0", "MORTISE_SDK_CPU=v3",
                           "MORTISE_ENV_WITHHELD=HF_TOKEN,OPENAI_API_KEY,AWS_SESSION_TOKEN,PYTHON_TOKEN,https_proxy"));
  const auto added = worker_environment(all, {"OPENAI_API_KEY", "NOT_SET", "https_proxy"});
  EXPECT_THAT(added, testing::IsSupersetOf({"OPENAI_API_KEY=b=c", "https_proxy=http://u:p@h",
                                            "MORTISE_ENV_ADDED=OPENAI_API_KEY,https_proxy"}));
  EXPECT_THAT(added, testing::Contains("MORTISE_ENV_WITHHELD=HF_TOKEN,AWS_SESSION_TOKEN,PYTHON_TOKEN"));
}

}  // namespace
}  // namespace mortise::test
