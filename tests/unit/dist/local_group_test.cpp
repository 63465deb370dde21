// `mortise launch`'s processes, with shell scripts as ranks.
#include "dist/launch/local_group.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <string>

#include "dist/launch/local_address.h"
#include "support/temp_dir.h"

namespace mortise {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;
using std::chrono::seconds;

// Runs a script as a group in a process of its own, since it blocks signals, and returns what that one printed.
struct Ended {
  int code = -1;
  std::string text;
};

Ended run_script(int num_ranks, const std::string& script, const test::TempDir& folder, int signal_after_ms = 0) {
  int out[2];
  EXPECT_EQ(pipe2(out, O_CLOEXEC), 0);
  const pid_t child = fork();
  if (child == 0) {
    LocalGroupOptions options;
    options.num_ranks = num_ranks;
    options.command = {"/bin/sh", "-c", script};
    options.log_folder = folder.path();
    options.threads_per_rank = 3;
    options.patience = milliseconds(1000);
    options.kill_grace = milliseconds(1000);
    setenv("TORCHELASTIC_USE_AGENT_STORE", "True", 1);
    const auto end = run_local_group(options);
    const std::string text = end.ok() ? end->text : end.error().to_string();
    const ssize_t written = write(out[1], text.data(), text.size());
    _exit(end.ok() && written >= 0 ? end->code : 99);
  }
  close(out[1]);
  if (signal_after_ms > 0) {
    usleep(static_cast<useconds_t>(signal_after_ms) * 1000);
    kill(child, SIGINT);
  }
  Ended ended;
  char buffer[4096];
  ssize_t size = 0;
  while ((size = read(out[0], buffer, sizeof buffer)) > 0) ended.text.append(buffer, static_cast<size_t>(size));
  close(out[0]);
  int status = 0;
  waitpid(child, &status, 0);
  ended.code = WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
  return ended;
}

TEST(LocalGroup, GivesEachRankItsVariablesAndItsLog) {
  const test::TempDir folder;
  const Ended ended = run_script(3,
                                 "[ $RANK = 0 ] || echo $RANK $LOCAL_RANK $WORLD_SIZE $LOCAL_WORLD_SIZE $MASTER_ADDR "
                                 "$OMP_NUM_THREADS ${TORCHELASTIC_USE_AGENT_STORE-none}; [ $MASTER_PORT -gt 1023 ]",
                                 folder);
  EXPECT_EQ(ended.code, 0) << ended.text;
  EXPECT_EQ(ended.text, "");
  EXPECT_EQ(folder.read("rank_1.log"), "1 1 3 3 127.0.0.1 3 none\n");
  EXPECT_EQ(folder.read("rank_2.log"), "2 2 3 3 127.0.0.1 3 none\n");
  EXPECT_FALSE(default_env().exists(folder / "rank_0.log")) << "rank 0 writes to the terminal";
}

TEST(LocalGroup, EndsAllAndNamesTheRankThatFailed) {
  const test::TempDir folder;
  const auto begin = Clock::now();
  const Ended ended = run_script(3, "[ $RANK = 1 ] && exit 4; trap 'exit 8' TERM; sleep 60 & wait", folder);
  EXPECT_EQ(ended.code, 4);
  EXPECT_EQ(ended.text, "rank 1 ended with exit code 4");
  EXPECT_LT(Clock::now() - begin, seconds(30));
}

TEST(LocalGroup, ACauseIsNotARankThatBlamesAnother) {
  const test::TempDir folder;
  EXPECT_EQ(run_script(3, "[ $RANK = 0 ] && exit 7; sleep 0.5; [ $RANK = 2 ] && exit 5; exit 7", folder).text,
            "rank 2 ended with exit code 5");
  const Ended killed = run_script(2, "[ $RANK = 0 ] && exec sleep 60; kill -9 $$", folder);
  EXPECT_EQ(killed.code, 7);
  EXPECT_EQ(killed.text, "rank 1 was killed by signal 9 (Killed)");
}

TEST(LocalGroup, KillsRanksThatIgnoreTheirEnd) {
  const test::TempDir folder;
  const auto begin = Clock::now();
  const Ended ended = run_script(2, "[ $RANK = 1 ] && exit 3; trap '' TERM; while :; do sleep 0.1; done", folder);
  EXPECT_EQ(ended.code, 3);
  EXPECT_LT(Clock::now() - begin, seconds(30));
}

TEST(LocalGroup, PassesSignalsOnToAllRanks) {
  const test::TempDir folder;
  const Ended ended = run_script(2, "trap 'echo got; exit 8' INT; sleep 60 & wait", folder, 1500);
  EXPECT_EQ(ended.code, 8);
  EXPECT_EQ(folder.read("rank_1.log"), "got\n");
}

TEST(LocalAddress, IsNoLoopbackAddress) {
  EXPECT_EQ(address_toward("127.0.0.1", 29500), "");
  EXPECT_EQ(address_toward("localhost", 29500), "");
  EXPECT_EQ(address_toward("no-such-host.invalid", 29500), "");
}

TEST(LocalAddress, FindsAFreePort) {
  const auto port = free_port();
  ASSERT_TRUE(port.ok());
  EXPECT_GT(*port, 1023);
}

}  // namespace
}  // namespace mortise
