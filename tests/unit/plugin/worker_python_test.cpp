// The reward `python` in workers: it may start its interpreter without `allow`, and none of its processes outlives its
// worker.
#include <csignal>
#include <cstdlib>
#include <thread>

#include "worker_fixture.h"

namespace mortise::test {
namespace {

using testing::AllOf;
using testing::AnyOf;
using testing::HasSubstr;

constexpr const char* kReward = R"(
import os, socket, time
calls = 0
def reward(completions, folder, **kwargs):
    global calls
    calls += 1
    if completions[0] == "hang":
        time.sleep(1000)
    if completions[0] == "connect":
        socket.create_connection(("127.0.0.1", 9), 1)
    if completions[0] == "worker":
        open(folder[0] + "/pids", "w").write("%d %d" % (os.getpid(), os.getppid()))
        time.sleep(1000)
    open(folder[0] + "/written", "w").write("x")
    return [float(len(c)) for c in completions]
)";

class PythonInWorkers : public WorkerTest {
 protected:
  void SetUp() override {
    if (std::system("python3 -c 'import sys; sys.exit(sys.version_info < (3, 8))' >/dev/null 2>&1") != 0)
      GTEST_SKIP() << "no python3 of 3.8 or newer in PATH: the reward `python` was not tested in workers";
    RegistryOptions registry = only({});
    registry.builtin_dir = Path(MORTISE_BINARY_DIR) / "lib/mortise/packs";
    auto opened = PluginRegistry::open(registry);
    ASSERT_OK(opened);
    registry_ = std::move(opened).value();
    options_.limits.network = options_.limits.write_files = options_.limits.start_programs = false;
    options_.limits.memory_bytes = int64_t{8} << 30;
    options_.limits.open_files = 256;
  }
  nlohmann::ordered_json params() const {
    return {{"path", dir_.write("my_reward.py", kReward).string()}, {"start_limit", 300}};
  }
  std::unique_ptr<RewardFunction> python() { return make("python", 3, params()); }
  RewardBatch rows(const std::vector<std::string>& completions) const {
    RewardBatch batch = rows_of(completions);
    const nlohmann::ordered_json folder = dir_.path().string();
    const std::vector<const nlohmann::ordered_json*> cells(completions.size(), &folder);
    batch.columns.push_back(DataColumn::from_json("folder", ColumnType::kText, cells));
    return batch;
  }

  TempDir dir_;
};

TEST_F(PythonInWorkers, MayDoWhatItDeclaresAndNoMore) {
  auto reward = python();
  ASSERT_OK_AND_ASSIGN(const RewardOutput out, reward->score(request(3), rows({"", "a", "bb"}), nullptr));
  EXPECT_EQ(out.rewards, (std::vector<double>{0, 1, 2})) << (out.failed_rows.empty() ? "" : out.failed_rows[0].text);
  EXPECT_EQ(dir_.read("written"), "x");
  ASSERT_OK_AND_ASSIGN(const RewardOutput refused, reward->score(request(1), rows({"connect"}), nullptr));
  EXPECT_THAT(failures(refused)[0], AllOf(HasSubstr("PermissionError"), HasSubstr("my_reward.py:10"),
                                          HasSubstr("add allow = [\"network\"] to its [[reward]] table")));
}

TEST_F(PythonInWorkers, AHangEndsAtTheDeadlineAndTheNextBatchIsScored) {
  auto reward = make_patient("python", params());
  ASSERT_OK_AND_ASSIGN(const RewardOutput hung, reward->score(request(2, 2'000, 0), rows({"hang", "a"}), nullptr));
  EXPECT_EQ(hung.failed_rows.size(), 2U);
  // Where ending the process and starting another takes longer than the time kept for it, the host names the limit.
  EXPECT_THAT(failures(hung)[1], AnyOf(HasSubstr("took longer than the time for the batch"),
                                       HasSubstr("its limit is 2.00 s; raise its timeout")));
  EXPECT_EQ(dynamic_cast<RewardPool&>(*reward).num_replaced(), 0) << "the plugin itself ended the call";
  ASSERT_OK_AND_ASSIGN(const RewardOutput next, reward->score(request(2), rows({"a", "bbb"}), nullptr));
  EXPECT_EQ(next.rewards, (std::vector<double>{1, 3})) << (next.failed_rows.empty() ? "" : next.failed_rows[0].text);
}

TEST_F(PythonInWorkers, EndsWithItsWorker) {
  options_.bubblewrap = false;  // process numbers are others inside
  auto reward = python();
  std::thread killer([&] {
    const std::string pids = (dir_ / "pids").string();
    const std::string kill = "for i in $(seq 6000); do [ -s " + pids + " ] && break; sleep 0.02; done; set -- $(cat " +
                             pids + "); kill -9 $2; for i in $(seq 6000); do grep -q 'State:.[RSD]' /proc/$1/status " +
                             "2>/dev/null || exit 0; sleep 0.02; done; exit 1";
    EXPECT_EQ(std::system(kill.c_str()), 0) << "the interpreter outlived its worker";
  });
  ASSERT_OK_AND_ASSIGN(const RewardOutput lost, reward->score(request(1), rows({"worker"}), nullptr));
  killer.join();
  EXPECT_THAT(failures(lost)[0], HasSubstr("signal 9"));
  ASSERT_OK_AND_ASSIGN(const RewardOutput next, reward->score(request(1), rows({"a"}), nullptr));
  EXPECT_EQ(next.rewards, (std::vector<double>{1}));
}

}  // namespace
}  // namespace mortise::test
