// Deadlines, the grace after them, replacements and stops of the pool, in virtual time: the real scheduling over a
// simulated machine (sim_workers.h). Times are exact here, whatever the machine does that runs the test.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>

#include "experience/reward/reward_runner.h"
#include "plugin/worker/reward_pool.h"
#include "sim_workers.h"
#include "worker_fixture.h"

namespace mortise::test {
namespace {

using testing::HasSubstr;

class WorkerTime : public testing::Test {
 protected:
  std::unique_ptr<RewardFunction> pool(int num_workers, const SimReward& reward = {}) {
    machines_.push_back(std::make_unique<SimMachine>(clock_, SimFaults{}, reward));
    PoolOptions options;
    options.num_workers = num_workers;
    options.program = "/simulated/mortise-worker";
    options.system = &machines_.back()->system;
    InstanceIdentity identity;
    identity.label = "sim";
    RunKey key;
    key.cancelled = &stop_;
    auto made = RewardPool::start(PluginRef{&pack_, &plugin_, nullptr}, identity, key, WorkerLimits{}, options);
    EXPECT_OK(made);
    return std::move(made).value();
  }
  RewardRunner runner(const std::vector<RewardSpec>& specs) {
    std::vector<std::unique_ptr<RewardFunction>> functions;
    for (size_t i = 0; i < specs.size(); ++i) functions.push_back(pool(1));
    return RewardRunner::over(specs, std::move(functions), /*max_failed_fraction=*/1.0);
  }
  static RewardSpec spec(const std::string& label, int64_t row_timeout_ms) {
    RewardSpec out;
    out.use = out.label = label;
    out.row_timeout_ms = row_timeout_ms;
    return out;
  }
  void take(const std::vector<std::string>& completions) {
    samples_.num_samples_per_prompt = 1;
    for (const std::string& text : completions) {
      Sample& sample = samples_.rows.emplace_back();
      sample.prompt_index = static_cast<int64_t>(prompts_.prompts.size());
      sample.text = text;
      prompts_.prompts.emplace_back();
    }
  }
  void pass_ms(int64_t ms) { clock_.run_until(clock_.now_ns() + ms * kSimMs); }
  [[nodiscard]] int64_t now_ms() const { return clock_.now_ns() / kSimMs; }
  static int64_t num_replaced(const std::unique_ptr<RewardFunction>& reward) {
    return dynamic_cast<const RewardPool&>(*reward).num_replaced();
  }

  SimClock clock_{7};
  PackInfo pack_;
  PluginInfo plugin_;
  std::atomic<bool> stop_ = false;
  std::vector<std::unique_ptr<SimMachine>> machines_;
  PromptBatch prompts_;
  SampleBatch samples_;
};

// A new worker takes five seconds here. The row after the crash does not wait for one: the spare is ready.
TEST_F(WorkerTime, ASpareTakesOverWithoutAnyStart) {
  constexpr int64_t kStartMs = 5'000;
  SimReward slow_start;
  slow_start.start_ns = kStartMs * kSimMs;
  const auto reward = pool(1, slow_start);
  pass_ms(2 * kStartMs);
  const int64_t begin = now_ms();
  ASSERT_OK_AND_ASSIGN(const RewardOutput out, reward->score({3, 1}, rows_of({"ok1", "crash", "ok2"}), nullptr));
  EXPECT_LT(now_ms() - begin, 100);
  EXPECT_EQ(out.failed_rows.size(), 1U);
  EXPECT_EQ(out.rewards[2], sim_reward("ok2", 2));
  EXPECT_EQ(num_replaced(reward), 1);
  // Two at once are one more than there are spares.
  pass_ms(2 * kStartMs);
  const int64_t again = now_ms();
  ASSERT_OK(reward->score({3, 2}, rows_of({"crash", "crash", "ok"}), nullptr));
  EXPECT_GE(now_ms() - again, kStartMs - 100);
  EXPECT_LT(now_ms() - again, kStartMs + 100);
}

TEST_F(WorkerTime, AHangCostsItsRowAndItsTime) {
  const auto reward = pool(2);
  const int64_t begin = now_ms();
  const RewardBatch rows = rows_of({"ok1", "hang", "ok2", "ok3", "hang", "ok4"});
  ASSERT_OK_AND_ASSIGN(const RewardOutput out, reward->score({6, 1, 0, 300}, rows, nullptr));
  EXPECT_GE(now_ms() - begin, 300);
  EXPECT_LT(now_ms() - begin, 2 * 350 + 300);
  EXPECT_EQ(out.failed_rows.size(), 2U);
}

// A row that comes back up to 50 ms late costs no worker.
TEST_F(WorkerTime, TheGraceIsKeptToTheMillisecond) {
  const auto reward = pool(1);
  ASSERT_OK(reward->score({2, 1, 0, 100}, rows_of({"take145", "ok1"}), nullptr));
  EXPECT_EQ(num_replaced(reward), 0);
  ASSERT_OK_AND_ASSIGN(const RewardOutput out, reward->score({2, 2, 0, 100}, rows_of({"take155", "ok1"}), nullptr));
  EXPECT_EQ(num_replaced(reward), 1);
  ASSERT_EQ(out.failed_rows.size(), 1U);
  EXPECT_THAT(out.failed_rows[0].text, HasSubstr("took longer than row_timeout = 0.10 s; its worker was killed"));
}

TEST_F(WorkerTime, TheBatchHasADeadlineToo) {
  const auto reward = pool(2);
  const int64_t begin = now_ms();
  const RewardBatch rows = rows_of(std::vector<std::string>(100, "take20"));
  ASSERT_OK_AND_ASSIGN(const RewardOutput out, reward->score({100, 1, 400, 10'000}, rows, nullptr));
  EXPECT_GE(now_ms() - begin, 400);
  EXPECT_LT(now_ms() - begin, 500);
  // Two workers score a row in 20 ms each. The second one is up to 35 ms late.
  EXPECT_GE(out.failed_rows.size(), 100U - 2 * 20);
  EXPECT_LE(out.failed_rows.size(), 100U - 2 * 20 + 5);
  EXPECT_EQ(num_replaced(reward), 0) << "each worker sees for itself that it is too late";
}

// A stop of the run waits a second for rows that listen, and no longer for the others.
TEST_F(WorkerTime, AStopWaitsASecondForTheRowsAtWork) {
  for (const bool is_deaf : {false, true}) {
    const auto reward = pool(2);
    stop_ = false;
    clock_.after(200 * kSimMs, [this] { stop_ = true; });
    const int64_t begin = now_ms();
    const auto out = reward->score({3, 1}, rows_of({"polite0", is_deaf ? "hang" : "polite700", "ok"}), nullptr);
    ASSERT_FALSE(out.ok());
    EXPECT_EQ(out.error().kind, ErrorKind::kSignal);
    EXPECT_EQ(num_replaced(reward), is_deaf ? 1 : 0);
    // The pool looks for a stop once a second.
    EXPECT_GE(now_ms() - begin, 1'000 + (is_deaf ? 1'000 : 700));
    EXPECT_LT(now_ms() - begin, 1'000 + (is_deaf ? 1'100 : 800));
  }
}

TEST_F(WorkerTime, AllFunctionsAreLookedAfterWhileTheSlowestWorks) {
  take(std::vector<std::string>(5, "hang"));
  for (const auto& [first, second] : {std::pair(300, 200), std::pair(200, 300)}) {
    RewardRunner both = runner({spec("first", first), spec("second", second)});
    const int64_t begin = now_ms();
    ASSERT_OK_AND_ASSIGN(const ScoredBatch scored, both.score(prompts_, samples_, {}, nullptr));
    EXPECT_EQ(scored.columns[0].num_failed, 5);
    EXPECT_EQ(scored.columns[1].num_failed, 5);
    // Five times 350 ms and the replacements. The other function's five times 250 ms pass meanwhile.
    EXPECT_LT(now_ms() - begin, 5 * 350 + 5 * 100);
  }
}

TEST_F(WorkerTime, TendKeepsDeadlinesBetweenFeeds) {
  take({"hang", "hang", "hang", "ok1", "ok2"});
  RewardRunner one = runner({spec("sim", 200)});
  ASSERT_OK(one.begin(prompts_, 1, {}));
  for (int64_t prompt = 0; prompt < 4; ++prompt) ASSERT_OK(one.feed(prompts_, samples_, prompt));
  for (int turn = 0; turn < 200; ++turn) {
    ASSERT_OK(one.tend(prompts_, samples_));
    pass_ms(10);
  }
  const int64_t begin = now_ms();
  ASSERT_OK_AND_ASSIGN(const ScoredBatch scored, one.score(prompts_, samples_, {}, nullptr));
  EXPECT_LT(now_ms() - begin, 100) << "three hangs of 0.25 s were over before the last row came";
  EXPECT_EQ(scored.columns[0].num_failed, 3);
  EXPECT_EQ(scored.rewards[3], sim_reward("ok1", 3));
}

}  // namespace
}  // namespace mortise::test
