// Ranks on several networks: each has its own network namespace behind one bridge, as machines behind a switch have.
// Some are slow and lose frames. Needs root and `ip`; without them the tests are skipped, aloud.
#include <fmt/core.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <optional>
#include <string>

#include "rank_processes.h"
#include "slow_switch.h"

namespace mortise {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using testing::HasSubstr;

bool run_quietly(const std::string& command) { return std::system((command + " > /dev/null 2>&1").c_str()) == 0; }

class Network {
 public:
  explicit Network(int size) : size_(size) {
    is_there_ = run_quietly("ip netns add " + name("switch")) &&
                run_quietly(fmt::format("ip -n {} link add br0 type bridge", name("switch"))) &&
                run_quietly(fmt::format("ip -n {} link set br0 up", name("switch")));
    for (int rank = 0; rank < size && is_there_; ++rank) is_there_ = add_machine(rank);
  }
  // The same behind a slow switch.
  Network(int size, std::chrono::milliseconds delay, double loss) : size_(size), slow_(std::in_place, delay, loss) {
    is_there_ = true;
    for (int rank = 0; rank < size && is_there_; ++rank) is_there_ = add_slow_machine(rank);
    if (is_there_) slow_->start();
  }
  Network(const Network&) = delete;
  Network& operator=(const Network&) = delete;
  ~Network() {
    for (int rank = 0; rank < size_; ++rank) run_quietly("ip netns del " + machine(rank));
    if (!slow_) run_quietly("ip netns del " + name("switch"));
  }
  [[nodiscard]] bool is_there() const { return is_there_; }
  [[nodiscard]] int64_t num_lost() const { return slow_->num_lost(); }
  [[nodiscard]] std::string machine(int rank) const { return name(std::to_string(rank)); }
  void cut(int rank) {
    if (slow_) return slow_->cut(rank);
    EXPECT_TRUE(run_quietly(fmt::format("ip -n {} link set v{} down", name("switch"), rank)));
  }

 private:
  std::string name(const std::string& what) const { return fmt::format("mortise_{}_{}_{}", getpid(), number_, what); }
  bool add_machine(int rank) const {
    const std::string own = machine(rank);
    const std::string bridge = name("switch");
    return run_quietly("ip netns add " + own) &&
           run_quietly(fmt::format("ip -n {} link add v{} type veth peer name eth0 netns {}", bridge, rank, own)) &&
           run_quietly(fmt::format("ip -n {} link set v{} master br0 up", bridge, rank)) && connect(rank);
  }
  bool add_slow_machine(int rank) {
    return run_quietly("ip netns add " + machine(rank)) && slow_->add(machine(rank)) && connect(rank);
  }
  bool connect(int rank) const {
    const std::string own = machine(rank);
    return run_quietly(fmt::format("ip -n {} addr add 10.99.7.{}/24 dev eth0", own, rank + 1)) &&
           run_quietly(fmt::format("ip -n {} link set eth0 up", own)) &&
           run_quietly(fmt::format("ip -n {} link set lo up", own));
  }

  static inline int num_made_ = 0;
  int number_ = num_made_++;
  int size_;
  bool is_there_ = false;
  std::optional<SlowSwitch> slow_;
};

bool has_process_namespaces() { return run_quietly("unshare -pf --mount-proc true"); }

class Networks : public testing::Test {
 protected:
  static RankProcesses start(const Network& network, const std::vector<std::string>& words,
                             const Environment& more = {}) {
    Environment environment{{"MASTER_ADDR", "10.99.7.1"}, {"MASTER_PORT", "29500"}, {"ANSWER_MS", "10000"}};
    environment.insert(more.begin(), more.end());
    return RankProcesses(3, words, environment, [&](int rank) { return network.machine(rank); });
  }
};

TEST_F(Networks, RanksOnSeveralMachinesFindEachOther) {
  const Network network(3);
  if (!network.is_there()) GTEST_SKIP() << "no network namespaces: ranks did not run on several networks";
  RankProcesses ranks = start(network, {"20"});
  for (int rank = 0; rank < 3; ++rank) EXPECT_EQ(ranks.code(rank, seconds(300)), 0) << ranks.output(rank);
}

// The kernel says nothing about a process of another machine: its closed connections and its silence must do.
TEST(Machines, ARankThatIsKilledOnAnotherMachineIsNamed) {
  if (!has_process_namespaces()) GTEST_SKIP() << "no process namespaces: no rank was killed so";
  for (const int victim : {0, 1, 2}) {
    SCOPED_TRACE(fmt::format("rank {}", victim));
    RankProcesses ranks(3, {"0", "1", "20"}, {{"OWN_PROCESSES", "1"}});
    ranks.wait_until_joined();
    ranks.send(victim, SIGKILL);
    for (int rank = 0; rank < 3; ++rank) {
      if (rank == victim) continue;
      EXPECT_EQ(ranks.code(rank, seconds(300)), 7) << ranks.output(rank);
      EXPECT_THAT(ranks.output(rank), HasSubstr(fmt::format("error: rank {} (process ", victim)));
    }
  }
}

// Delays and lost frames end nothing, and no rank is blamed for them.
TEST_F(Networks, RanksOnASlowNetworkReachTheEnd) {
  const Network network(3, milliseconds(10), 0.02);
  if (!network.is_there()) GTEST_SKIP() << "no network namespaces or TAP devices: no frame was delayed or lost";
  RankProcesses ranks = start(network, {"20"});
  for (int rank = 0; rank < 3; ++rank) EXPECT_EQ(ranks.code(rank, seconds(300)), 0) << ranks.output(rank);
  EXPECT_GT(network.num_lost(), 0);
}

// The process lives and its connections stay open, but no packet comes through. The ranks do not see each other's
// processes: the machine behind the cut ends after the same limit as the others, and none of them may notice.
class Cables : public Networks {
 protected:
  void SetUp() override {
    if (!has_process_namespaces()) GTEST_SKIP() << "no process namespaces: no cable was cut";
  }
  static RankProcesses start_machines(const Network& network) {
    return start(network, {"0", "1", "20"}, {{"OWN_PROCESSES", "1"}});
  }
  static void expect_named(RankProcesses& ranks, int victim) {
    for (int rank = 0; rank < 3; ++rank) {
      EXPECT_EQ(ranks.code(rank, seconds(300)), 7) << ranks.output(rank);
      if (rank == victim) continue;
      EXPECT_THAT(ranks.output(rank), HasSubstr(fmt::format("error: rank {} (process ", victim)));
      EXPECT_THAT(ranks.output(rank), HasSubstr(") has not answered for "));
    }
  }
};

TEST_F(Cables, AMachineWhoseCableIsCutIsNamed) {
  Network first(3), second(3);
  if (!first.is_there() || !second.is_there()) GTEST_SKIP() << "no network namespaces: no cable was cut";
  RankProcesses with_store = start_machines(first);  // both groups wait for their limits at the same time
  RankProcesses without_store = start_machines(second);
  with_store.wait_until_joined();
  first.cut(2);
  without_store.wait_until_joined();
  second.cut(0);
  expect_named(with_store, 2);
  expect_named(without_store, 0);
}

TEST_F(Cables, AMachineWhoseCableIsCutIsNamedOnASlowNetwork) {
  Network network(3, milliseconds(10), 0.02);
  if (!network.is_there()) GTEST_SKIP() << "no network namespaces or TAP devices: no cable was cut";
  RankProcesses ranks = start_machines(network);
  ranks.wait_until_joined();
  network.cut(1);
  expect_named(ranks, 1);
}

}  // namespace
}  // namespace mortise
