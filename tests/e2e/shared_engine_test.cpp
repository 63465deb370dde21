// The engine that tests get from the server (support/engine): it is a fork, has what a new program would have, ends with
// the process that asked for it, and is a new program where a fork could differ.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "process.h"
#include "run_bits.h"
#include "support/http_get.h"
#include "support/processes.h"

namespace mortise::test {
namespace {

using testing::HasSubstr;

// What a link of /proc/PID/ names.
Path link_of(pid_t pid, const std::string& name) {
  std::error_code ended;
  return std::filesystem::read_symlink("/proc/" + std::to_string(pid) + "/" + name, ended);
}

const std::string kTestPrograms = std::string(MORTISE_BINARY_DIR) + "/test_bin/";

class SharedEngine : public testing::Test {
 protected:
  [[nodiscard]] std::vector<std::string> endless_run() const {
    return task_.words("train", "out",
                       {"trainer.total_training_steps=100000", "actor.optim.lr_scheduler_type=constant"});
  }
  [[nodiscard]] Path console() const { return task_.path() / "console.txt"; }
  [[nodiscard]] std::string text() const { return default_env().read_file(console()).value(); }
  [[nodiscard]] bool has_begun() const {
    return comes_true([&] { return !rows_of(task_.path() / "out/metrics.jsonl").empty(); });
  }
  // The fork of the server that works in `dir`; 0 if there is none.
  static pid_t fork_in(const Path& dir) {
    for (const auto& entry : std::filesystem::directory_iterator("/proc")) {
      const pid_t pid = std::atoi(entry.path().filename().c_str());
      if (pid > 0 && link_of(pid, "exe") == kTestPrograms + "engine_server" && link_of(pid, "cwd") == dir) return pid;
    }
    return 0;
  }
  // A run whose engine is a fork that has begun to work.
  void expect_fork(const Process& process) {
    ASSERT_TRUE(has_begun()) << text();
    EXPECT_EQ(link_of(process.pid(), "exe"), kTestPrograms + "mortise-engine");  // it waits for the fork
    ASSERT_NE(engine_ = fork_in(task_.path()), 0);
    EXPECT_EQ(getpgid(engine_), engine_);
  }
  static pid_t parent_of(pid_t pid) {
    std::ifstream status("/proc/" + std::to_string(pid) + "/status");
    for (std::string line; std::getline(status, line);)
      if (line.starts_with("PPid:")) return std::stoi(line.substr(5));
    return 0;
  }

  TinyTask task_;
  pid_t engine_ = 0;
};

TEST_F(SharedEngine, IsAForkThatEndsWithTheProcessThatAskedForIt) {
  Process process(endless_run(), task_.path(), console());
  ASSERT_NO_FATAL_FAILURE(expect_fork(process));
  ASSERT_TRUE(comes_true([&] { return default_env().exists(task_.path() / "out/latest"); })) << text();
  EXPECT_EQ(process.kill_and_wait(), -SIGKILL);
  EXPECT_TRUE(all_end({engine_}));
  const size_t num_steps = rows_of(task_.path() / "out/metrics.jsonl").size() + 1;
  std::vector<std::string> words = endless_run();
  words.push_back("trainer.total_training_steps=" + std::to_string(num_steps));
  Process resumed(words, task_.path(), console());
  EXPECT_EQ(resumed.wait(), 0) << text();
  EXPECT_THAT(text(), HasSubstr("resumed from"));
}

TEST_F(SharedEngine, GetsSignalsAndGivesItsExitCode) {
  Process process(endless_run(), task_.path(), console());
  ASSERT_NO_FATAL_FAILURE(expect_fork(process));
  process.signal(SIGTERM);
  EXPECT_EQ(process.wait(), 8) << text();
}

TEST_F(SharedEngine, EndsTheProcessThatAskedForItByItsSignal) {
  Process process(endless_run(), task_.path(), console());
  ASSERT_NO_FATAL_FAILURE(expect_fork(process));
  ::kill(engine_, SIGKILL);
  EXPECT_EQ(process.wait(), -SIGKILL) << text();
}

TEST_F(SharedEngine, IgnoresTheSignalsThatTheProcessIgnores) {
  std::string line = "trap '' QUIT USR2; exec";
  for (const std::string& word : endless_run()) line += " '" + word + "'";
  Process process({"/bin/sh", "-c", line}, task_.path(), console());
  ASSERT_NO_FATAL_FAILURE(expect_fork(process));
  ::kill(engine_, SIGQUIT);
  ::kill(engine_, SIGUSR2);
  const size_t num_steps = rows_of(task_.path() / "out/metrics.jsonl").size();
  EXPECT_TRUE(comes_true([&] { return rows_of(task_.path() / "out/metrics.jsonl").size() > num_steps + 1; })) << text();
}

TEST_F(SharedEngine, HasTheWordsVariablesFolderAndDescriptors) {
  const Path sub = task_.path() / "sub";
  ASSERT_OK(default_env().create_dirs(sub));
  Process process({"/bin/sh", "-c",
                   "exec 7<../data/val.jsonl; MORTISE_API_KEY=sesame exec " + program() +
                       " serve --model ../model --port 0 --json trainer.num_threads=1"},
                  sub, console());
  const auto place = [&] { return text().find("\"port\":"); };
  ASSERT_TRUE(comes_true([&] { return process.poll() || text().find('\n', place()) != std::string::npos; }));
  ASSERT_NE(place(), std::string::npos) << text();
  const pid_t engine = fork_in(sub);
  ASSERT_NE(engine, 0);
  EXPECT_EQ(link_of(engine, "fd/0"), link_of(getpid(), "fd/0"));
  EXPECT_EQ(link_of(engine, "fd/1"), console());
  EXPECT_EQ(link_of(engine, "fd/7"), task_.path() / "data/val.jsonl");
  const int port = std::atoi(text().c_str() + place() + 7);
  EXPECT_THAT(http_ask(port, "GET /v1/models", "\r\n").head, HasSubstr(" 401 "));
  EXPECT_THAT(http_ask(port, "GET /v1/models", "Authorization: Bearer sesame\r\n\r\n").head, HasSubstr(" 200 "));
  process.signal(SIGTERM);
  process.wait();
}

TEST_F(SharedEngine, EndsWithTheServerAndSaysIt) {
  ::setenv("SHARED_ENGINE_TEST", std::to_string(::getpid()).c_str(), 1);  // the server of this test alone
  Process process(endless_run(), task_.path(), console());
  ::unsetenv("SHARED_ENGINE_TEST");
  ASSERT_NO_FATAL_FAILURE(expect_fork(process));
  ASSERT_EQ(link_of(parent_of(engine_), "exe"), kTestPrograms + "engine_server");
  ::kill(parent_of(engine_), SIGKILL);
  EXPECT_EQ(process.wait(), 125);
  EXPECT_THAT(text(), HasSubstr("somebody has ended the engine server"));
  EXPECT_TRUE(all_end({engine_}));
}

TEST_F(SharedEngine, IsANewProgramUnderOtherLimitsOrVariablesThatLibrariesMayRead) {
  for (const char* condition :
       {"ulimit -c 0; ulimit -f 1000000;", "export MALLOC_ARENA_MAX=1;", "export UNKNOWN=1;", "umask 077;"}) {
    std::string line = condition + std::string(" exec");
    for (const std::string& word : endless_run()) line += " '" + word + "'";
    Process process({"/bin/sh", "-c", line}, task_.path(), console());
    EXPECT_TRUE(comes_true([&] { return link_of(process.pid(), "exe") == program("mortise-engine"); })) << condition;
  }
}

}  // namespace
}  // namespace mortise::test
