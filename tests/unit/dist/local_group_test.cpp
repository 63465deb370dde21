// `mortise launch`'s processes, with shell scripts as ranks.
#include "dist/launch/local_group.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <climits>
#include <cstdlib>
#include <string>
#include <utility>
#include <vector>

#include "dist/launch/local_address.h"
#include "support/temp_dir.h"

namespace mortise {
namespace {

using std::chrono::milliseconds;

// Runs a script as a group in a process of its own, since it blocks signals, and returns what that one printed.
struct Ended {
  int code = -1;
  std::string text;
};

// `patience`: from the first failure until the others are told to end. `signal_when_ready`: SIGINT, as soon as each rank
// has made a file ready_RANK.
Ended run_script(int num_ranks, const std::string& script, const test::TempDir& folder,
                 milliseconds patience = milliseconds(1000), bool signal_when_ready = false) {
  int out[2];
  EXPECT_EQ(pipe2(out, O_CLOEXEC), 0);
  const pid_t child = fork();
  if (child == 0) {
    LocalGroupOptions options;
    options.num_ranks = num_ranks;
    options.command = {"/bin/sh", "-c", "cd " + folder.path().string() + "\n" + script};
    options.log_folder = folder.path();
    options.threads_per_rank = 3;
    options.patience = patience;
    options.kill_grace = milliseconds(1000);
    setenv("TORCHELASTIC_USE_AGENT_STORE", "True", 1);
    const auto end = run_local_group(options);
    const std::string text = end.ok() ? end->text : end.error().to_string();
    const ssize_t written = write(out[1], text.data(), text.size());
    _exit(end.ok() && written >= 0 ? end->code : 99);
  }
  close(out[1]);
  if (signal_when_ready) {
    for (int rank = 0; rank < num_ranks; ++rank)
      while (!default_env().exists(folder / ("ready_" + std::to_string(rank)))) usleep(10'000);
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
  const Ended ended =
      run_script(3, "[ $RANK = 1 ] && exit 4; trap 'exit 8' TERM; while :; do sleep 0.05; done", folder);
  EXPECT_EQ(ended.code, 4);
  EXPECT_EQ(ended.text, "rank 1 ended with exit code 4");
}

TEST(LocalGroup, ACauseIsNotARankThatBlamesAnother) {
  const test::TempDir folder;
  const std::string after_rank_0 = "[ $RANK = 0 ] && { : >first; exit 7; }; until [ -e first ]; do sleep 0.05; done; ";
  EXPECT_EQ(run_script(3, after_rank_0 + "[ $RANK = 2 ] && exit 5; exit 7", folder, milliseconds(INT_MAX)).text,
            "rank 2 ended with exit code 5");
  const Ended killed = run_script(2, "[ $RANK = 0 ] && exec sleep 1000; kill -9 $$", folder);
  EXPECT_EQ(killed.code, 7);
  EXPECT_EQ(killed.text, "rank 1 was killed by signal 9 (Killed)");
}

TEST(LocalGroup, KillsRanksThatIgnoreTheirEnd) {
  const test::TempDir folder;
  const Ended ended = run_script(2, "[ $RANK = 1 ] && exit 3; trap '' TERM; while :; do sleep 0.1; done", folder);
  EXPECT_EQ(ended.code, 3);
}

TEST(LocalGroup, PassesSignalsOnToAllRanks) {
  const test::TempDir folder;
  const Ended ended = run_script(2, "trap 'echo got; exit 8' INT; : >ready_$RANK; while :; do sleep 0.05; done", folder,
                                 milliseconds(INT_MAX), true);
  EXPECT_EQ(ended.code, 8);
  EXPECT_EQ(folder.read("rank_1.log"), "got\n");
}

TEST(LocalAddress, IsNoLoopbackAddress) {
  EXPECT_EQ(address_toward("127.0.0.1", 29500), "");
  EXPECT_EQ(address_toward("localhost", 29500), "");
  EXPECT_EQ(address_toward("no-such-host.invalid", 29500), "");
}

TEST(LocalAddress, SaysWhyANameHasNone) {
  EXPECT_EQ(lookup_problem("127.0.0.1"), "");
  EXPECT_EQ(lookup_problem("localhost"), "");
  EXPECT_NE(lookup_problem("no-such-host.invalid"), "");
}

// Whether a socket can serve the port of the loopback interface.
bool can_serve(int port, int reuses) {
  const int server = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  address.sin_port = htons(static_cast<uint16_t>(port));
  EXPECT_EQ(setsockopt(server, SOL_SOCKET, SO_REUSEADDR, &reuses, sizeof reuses), 0);
  const bool serves =
      bind(server, reinterpret_cast<sockaddr*>(&address), sizeof address) == 0 && listen(server, 1) == 0;
  close(server);
  return serves;
}

TEST(LocalAddress, FindsAFreePortAndHoldsIt) {
  auto port = free_port();
  ASSERT_TRUE(port.ok());
  EXPECT_GT(port->number, 1023);
  EXPECT_FALSE(can_serve(port->number, /*reuses=*/0)) << "others do not get it";
  EXPECT_TRUE(can_serve(port->number, /*reuses=*/1)) << "the server of the group gets it";
  port->hold.reset();
  EXPECT_TRUE(can_serve(port->number, /*reuses=*/0));
}

// Programs that ask for any port: as many as fit into a process.
TEST(LocalAddress, HoldsAPortAgainstThoseThatTakeAny) {
  const auto port = free_port();
  ASSERT_TRUE(port.ok());
  std::vector<FreePort> others;
  for (int i = 0; i < 800; ++i) {
    auto other = free_port();
    if (!other.ok()) break;
    EXPECT_NE(other->number, port->number);
    others.push_back(std::move(*other));
  }
  EXPECT_GT(others.size(), 100U);
}

}  // namespace
}  // namespace mortise
