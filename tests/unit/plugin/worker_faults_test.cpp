// A crash, a hang, an orphan and a slow row cost the current row, which fails with its reason.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <thread>

#include "plugin/worker/reward_pool.h"
#include "worker_fixture.h"

namespace mortise::test {
namespace {

using testing::HasSubstr;
using WorkerFaults = WorkerTest;

TEST_F(WorkerFaults, ACrashCostsItsRow) {
  std::vector<std::string> texts(200, "good");
  for (const auto& [row, text] : std::map<size_t, std::string>{{0, "crash"}, {7, "abort"}, {8, "exit"}, {150, "crash"}})
    texts[row] = text;
  auto reward = make("faulty", 2);
  MetricSet metrics;
  ASSERT_OK_AND_ASSIGN(const RewardOutput out, reward->score(request(200), rows_of(texts), &metrics));
  const auto failed = failures(out);
  ASSERT_EQ(failed.size(), 4U);
#if defined(MORTISE_ASAN) || defined(MORTISE_TSAN)  // they catch the signal, report it and exit
  EXPECT_THAT(failed.at(0), HasSubstr("its worker was ended by"));
  EXPECT_THAT(failed.at(7), HasSubstr("its worker was ended by"));
#else
  EXPECT_THAT(failed.at(0), HasSubstr("signal 11 (Segmentation fault)"));
  EXPECT_THAT(failed.at(7), HasSubstr("signal 6 (Aborted)"));
#endif
  EXPECT_THAT(failed.at(8), HasSubstr("exit code 7"));
  for (size_t i = 0; i < 200; ++i)
    EXPECT_EQ(std::isnan(out.rewards[i]), failed.count(static_cast<int64_t>(i)) == 1) << i;
  // What the other rows said is all there, those of the workers that died included.
  EXPECT_EQ(out.row_values.size(), 196U);
  EXPECT_EQ(metrics.value("faulty/length"), 4.0);
  // The next batch has its workers.
  ASSERT_OK_AND_ASSIGN(const RewardOutput next, reward->score(request(2), rows_of({"a", "b"}), nullptr));
  EXPECT_TRUE(next.failed_rows.empty());
}

TEST_F(WorkerFaults, NobodyElseCanBeKilled) {
  auto reward = make("faulty", 2);
  ASSERT_OK_AND_ASSIGN(const RewardOutput out, reward->score(request(3), rows_of({"a", "killer", "b"}), nullptr));
  EXPECT_TRUE(out.failed_rows.empty());
  EXPECT_EQ(std::floor(out.rewards[1]), 3.0);  // the pack adds a random part
}

TEST_F(WorkerFaults, AHangCostsItsRowAndItsTime) {
  auto reward = make("plain", 2);
  const Stopwatch watch;
  ASSERT_OK_AND_ASSIGN(const RewardOutput out,
                       reward->score(request(6, 10'000, 300), rows_of({"a", "hang", "b", "c", "hang", "d"}), nullptr));
  EXPECT_LT(watch.elapsed_s(), 5.0);
  const auto failed = failures(out);
  ASSERT_EQ(failed.size(), 2U);
  EXPECT_THAT(failed.at(1), HasSubstr("took longer than row_timeout = 0.30 s"));
  EXPECT_EQ(out.rewards[3], 1);
}

TEST_F(WorkerFaults, AReplacementIsThereWithin200Ms) {
  auto reward = make("plain", 1);
  ASSERT_OK(reward->score(request(1), rows_of({"a"}), nullptr));
  double best = 1e9;
  for (int attempt = 0; attempt < 5; ++attempt) {
    const Stopwatch watch;
    ASSERT_OK_AND_ASSIGN(const RewardOutput out, reward->score(request(2), rows_of({"crash", "b"}), nullptr));
    EXPECT_EQ(out.rewards[1], 1);
    best = std::min(best, watch.elapsed_s());
  }
  EXPECT_LT(best, 0.2);
}

// As while other rows are still being sampled: nothing waits for the batch, and only advance() is called.
TEST_F(WorkerFaults, RowDeadlinesAreKeptBeforeTheBatchIsComplete) {
  auto reward = make("plain", 1);
  ASSERT_OK(reward->begin(request(3, 20'000, 200)));
  ASSERT_OK(reward->add(rows_of({"hang", "b", "c"})));
  const Stopwatch watch;
  while (!reward->is_idle() && watch.elapsed_s() < 10) {
    ASSERT_OK(reward->advance(0));
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  EXPECT_LT(watch.elapsed_s(), 2.0);
  ASSERT_OK_AND_ASSIGN(const RewardOutput out, reward->finish(nullptr));
  EXPECT_THAT(failures(out).at(0), HasSubstr("took longer than row_timeout"));
  EXPECT_EQ(out.rewards[2], 1);
}

TEST_F(WorkerFaults, ThePoliteAreNotKilled) {
  auto reward = make("faulty", 1);
  ASSERT_OK_AND_ASSIGN(const RewardOutput out,
                       reward->score(request(2, 10'000, 100), rows_of({"polite", "b"}), nullptr));
  EXPECT_EQ(failures(out).size(), 1U);
  EXPECT_EQ(dynamic_cast<RewardPool&>(*reward).num_replaced(), 0);
}

TEST_F(WorkerFaults, TheBatchHasADeadlineToo) {
  auto reward = make("faulty", 2);
  const Stopwatch watch;
  std::vector<std::string> texts(100, "slow50");
  ASSERT_OK_AND_ASSIGN(const RewardOutput out, reward->score(request(100, 400, 10'000), rows_of(texts), nullptr));
  EXPECT_LT(watch.elapsed_s(), 3.0);
  EXPECT_GT(out.failed_rows.size(), 50U);
  EXPECT_LT(out.failed_rows.size(), 100U);
  // The worker that reaches the row too late says so, or the trainer for rows that no worker reached.
  EXPECT_THAT(out.failed_rows.back().text, HasSubstr("not scored: the batch took longer than"));
}

TEST_F(WorkerFaults, AChildThatAWorkerLeavesBehindChangesNothing) {
  auto reward = make("faulty", 1);
  ASSERT_OK_AND_ASSIGN(const RewardOutput out, reward->score(request(2), rows_of({"orphan", "b"}), nullptr));
  EXPECT_THAT(failures(out).at(0), HasSubstr("signal 9"));
  EXPECT_FALSE(std::isnan(out.rewards[1]));
}

TEST_F(WorkerFaults, ACrashInAGroupCostsTheGroup) {
  const RewardBatch rows = rows_of({"a", "crash", "b", "c"}, 2);
  ASSERT_OK_AND_ASSIGN(const RewardOutput out, make("whole_group", 2)->score(request(4), rows, nullptr));
  EXPECT_EQ(failures(out).size(), 2U);
  EXPECT_TRUE(std::isnan(out.rewards[0]) && std::isnan(out.rewards[1]));
  EXPECT_EQ(out.rewards[2], 2);
  EXPECT_THAT(failures(out).at(0), HasSubstr("while it scored group 0 (2 rows)"));
}

TEST_F(WorkerFaults, WhatIsBlamedIsWhatTheCallWasAbout) {
  ASSERT_OK_AND_ASSIGN(
      const RewardOutput hung,
      make("whole_group", 1)->score(request(4, 10'000, 200), rows_of({"a", "b", "c", "hang"}, 2), nullptr));
  EXPECT_EQ(hung.rewards[0], 2);
  EXPECT_THAT(failures(hung).at(2), HasSubstr("group 1 (2 rows) took longer than row_timeout = 0.20 s"));
  EXPECT_THAT(failures(hung).at(3), HasSubstr("group 1 (2 rows) took longer than row_timeout = 0.20 s"));
  ASSERT_OK_AND_ASSIGN(const RewardOutput batch,
                       make("whole_batch", 1)->score(request(2), rows_of({"a", "crash"}), nullptr));
  EXPECT_THAT(failures(batch).at(0), HasSubstr("while it scored the batch"));
  ASSERT_OK_AND_ASSIGN(const RewardOutput row, make("plain", 1)->score(request(2), rows_of({"a", "crash"}), nullptr));
  EXPECT_THAT(failures(row).at(1), HasSubstr("while it scored the row"));
}

// A run that is stopping tells the rewards at work, waits a little for those that listen, and hands out no more rows.
TEST_F(WorkerFaults, ARunThatIsStoppingTellsItsWorkers) {
  std::atomic<bool> stopping = false;
  options_.mode = Isolation::kProcess;
  options_.num_workers = 1;
  auto made =
      make_reward_function(registry_, "faulty", nlohmann::ordered_json::object(), RunKey{7, &stopping}, options_);
  ASSERT_TRUE(made.ok()) << made.error().to_string();
  RewardFunction& reward = **made;
  std::thread stop([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(200));
    stopping = true;
  });
  const Stopwatch watch;
  const auto stopped = reward.score(request(3, 60'000, 60'000), rows_of({"polite", "hang", "hang"}), nullptr);
  stop.join();
  ASSERT_FALSE(stopped.ok()) << "the rows behind the first would hang for a minute";
  EXPECT_EQ(stopped.error().kind, ErrorKind::kSignal);
  EXPECT_LT(watch.elapsed_s(), 10.0);
  EXPECT_EQ(dynamic_cast<RewardPool&>(reward).num_replaced(), 0) << "it was told, and nobody had to be killed";
  // One that does not listen is not waited for.
  stopping = false;
  std::thread again([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
    stopping = true;
  });
  const Stopwatch deaf;
  EXPECT_FALSE(reward.score(request(1, 60'000, 60'000), rows_of({"hang"}), nullptr).ok());
  again.join();
  EXPECT_LT(deaf.elapsed_s(), 10.0);
  stopping = false;
  ASSERT_OK_AND_ASSIGN(const RewardOutput after, reward.score(request(1), rows_of({"abc"}), nullptr));
  EXPECT_EQ(std::floor(after.rewards[0]), 3);
}

TEST_F(WorkerFaults, ASuccessorGoesOnFromTheStateOfTheLastBatch) {
  auto reward = make("counter", 2);
  ASSERT_OK(reward->score(request(3), rows_of({"a", "b", "c"}), nullptr));
  ASSERT_OK_AND_ASSIGN(const RewardOutput out, reward->score(request(3), rows_of({"d", "crash", "e"}), nullptr));
  EXPECT_EQ(out.rewards[0], 4);
  EXPECT_TRUE(std::isnan(out.rewards[1]));
  EXPECT_EQ(out.rewards[2], 4);  // a copy of the state after three rows
}

TEST_F(WorkerFaults, InfinityAndNothingAreToldApart) {
  ASSERT_OK_AND_ASSIGN(const RewardOutput out,
                       make("faulty", 1)->score(request(3), rows_of({"inf", "none", "a"}), nullptr));
  ASSERT_EQ(out.failed_rows.size(), 1U);
  EXPECT_THAT(out.failed_rows[0].text, HasSubstr("gave the reward inf"));
  EXPECT_TRUE(std::isnan(out.rewards[1]));
}

}  // namespace
}  // namespace mortise::test
