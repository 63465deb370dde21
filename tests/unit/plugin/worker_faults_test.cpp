// A crash, a hang, an orphan and a slow row cost the current row, which fails with its reason.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <set>
#include <thread>

#include "plugin/worker/reward_pool.h"
#include "worker_fixture.h"

namespace mortise::test {
namespace {

using testing::HasSubstr;
using WorkerFaults = WorkerTest;
using WorkerHangs = WorkerTest;  // a suite of its own: these wait for time limits, next to the others

TEST_F(WorkerFaults, ACrashCostsItsRow) {
  std::vector<std::string> texts(200, "good");
  for (const auto& [row, text] : std::map<size_t, std::string>{{0, "crash"}, {7, "abort"}, {8, "exit"}, {150, "crash"}})
    texts[row] = text;
  auto reward = make("faulty", 2);
  MetricSet metrics;
  ASSERT_OK_AND_ASSIGN(const RewardOutput out, reward->score(request(200), rows_of(texts), &metrics));
  const auto failed = failures(out);
  ASSERT_EQ(failed.size(), 4U);
  // Sanitizers catch the signal, report it and exit.
  const std::string by_a_sanitizer = "its worker was ended by";
  EXPECT_THAT(failed.at(0), HasSubstr(test::kSanitized ? by_a_sanitizer : "signal 11 (Segmentation fault)"));
  EXPECT_THAT(failed.at(7), HasSubstr(test::kSanitized ? by_a_sanitizer : "signal 6 (Aborted)"));
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

// That this test ends shows that the hangs do. worker_time_test.cpp has the times.
TEST_F(WorkerHangs, AHangCostsItsRow) {
  auto reward = make("plain", 2);
  ASSERT_OK_AND_ASSIGN(const RewardOutput out,
                       reward->score(request(6, 0, 5'000), rows_of({"a", "hang", "b", "c", "hang", "d"}), nullptr));
  const auto failed = failures(out);
  ASSERT_EQ(failed.size(), 2U);
  EXPECT_THAT(failed.at(1), HasSubstr("took longer than row_timeout = 5.00 s"));
  EXPECT_EQ(out.rewards[3], 1);
}

// What makes a replacement cheap: it is a fork of a process that has loaded the pack. `./dev bench rewards` has the time.
TEST_F(WorkerFaults, EveryReplacementIsAForkOfTheLoadedPack) {
  auto reward = make("probe", 1);
  std::set<double> parents, loaders;
  constexpr size_t kCrashes = 5;
  for (size_t i = 0; i < kCrashes; ++i) {
    ASSERT_OK_AND_ASSIGN(const RewardOutput out,
                         reward->score(request(3), rows_of({"parent", "loaded_by", "crash"}), nullptr));
    EXPECT_EQ(failures(out).size(), 1U);
    parents.insert(out.rewards[0]);
    loaders.insert(out.rewards[1]);
  }
  EXPECT_EQ(dynamic_cast<RewardPool&>(*reward).num_replaced(), static_cast<int64_t>(kCrashes));
  EXPECT_EQ(parents.size(), 1U);
  EXPECT_EQ(loaders, parents);
}

// As while other rows are still being sampled: nothing waits for the batch, and only advance() is called.
TEST_F(WorkerHangs, RowDeadlinesAreKeptBeforeTheBatchIsComplete) {
  auto reward = make("plain", 1);
  ASSERT_OK(reward->begin(request(3, 0, 5'000)));
  ASSERT_OK(reward->add(rows_of({"hang", "b", "c"})));
  while (!reward->is_idle()) {
    ASSERT_OK(reward->advance(0));
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  ASSERT_OK_AND_ASSIGN(const RewardOutput out, reward->finish(nullptr));
  EXPECT_THAT(failures(out).at(0), HasSubstr("took longer than row_timeout"));
  EXPECT_EQ(out.rewards[2], 1);
}

TEST_F(WorkerFaults, ThePoliteAreNotKilled) {
  auto reward = make_patient("faulty");
  ASSERT_OK_AND_ASSIGN(const RewardOutput out, reward->score(request(1, 0, 100), rows_of({"polite"}), nullptr));
  EXPECT_THAT(failures(out).at(0), HasSubstr("its limit is 0.10 s"));
  EXPECT_EQ(dynamic_cast<RewardPool&>(*reward).num_replaced(), 0);
}

// The row at work is lost, and those that no worker has reached say so: the worker itself where it still can, the
// trainer where the worker hangs.
TEST_F(WorkerFaults, TheBatchHasADeadlineToo) {
  for (const char* last : {"polite", "hang"}) {
    auto reward = make("faulty", 1);
    std::vector<std::string> texts(100, "abc");
    texts[30] = last;  // in a piece that is given to the worker when the time of the batch has begun
    ASSERT_OK_AND_ASSIGN(const RewardOutput out, reward->score(request(100, 8'000, 0), rows_of(texts), nullptr));
    EXPECT_EQ(std::floor(out.rewards[0]), 3);
    ASSERT_EQ(out.failed_rows.size(), 70U) << last;
    EXPECT_THAT(out.failed_rows[1].text, HasSubstr("not scored: the batch took longer than"));
    EXPECT_THAT(out.failed_rows.back().text, HasSubstr("not scored: the batch took longer than"));
  }
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

TEST_F(WorkerHangs, WhatIsBlamedIsWhatTheCallWasAbout) {
  ASSERT_OK_AND_ASSIGN(
      const RewardOutput hung,
      make("whole_group", 1)->score(request(4, 0, 5'000), rows_of({"a", "b", "c", "hang"}, 2), nullptr));
  EXPECT_EQ(hung.rewards[0], 2);
  EXPECT_THAT(failures(hung).at(2), HasSubstr("group 1 (2 rows) took longer than row_timeout = 5.00 s"));
  EXPECT_THAT(failures(hung).at(3), HasSubstr("group 1 (2 rows) took longer than row_timeout = 5.00 s"));
  ASSERT_OK_AND_ASSIGN(const RewardOutput batch,
                       make("whole_batch", 1)->score(request(2), rows_of({"a", "crash"}), nullptr));
  EXPECT_THAT(failures(batch).at(0), HasSubstr("while it scored the batch"));
  ASSERT_OK_AND_ASSIGN(const RewardOutput row, make("plain", 1)->score(request(2), rows_of({"a", "crash"}), nullptr));
  EXPECT_THAT(failures(row).at(1), HasSubstr("while it scored the row"));
}

// Sets `stopping` when a row has begun, which then waits for its end.
std::thread stop_at(const Path& mark, std::atomic<bool>& stopping) {
  return std::thread([&stopping, mark] {
    wait_for_file(mark);
    stopping = true;
  });
}

// A run that is stopping tells the rewards at work, waits for those that listen, and hands out no more rows.
TEST_F(WorkerFaults, ARunThatIsStoppingTellsItsWorkers) {
  const TempDir dir;
  std::atomic<bool> stopping = false;
  const auto reward = make_patient("faulty", {{"mark", (dir / "begun").string()}}, &stopping);
  std::thread stop = stop_at(dir / "begun", stopping);
  const auto stopped = reward->score(request(3, 0, 0), rows_of({"polite", "hang", "hang"}), nullptr);
  stop.join();
  ASSERT_FALSE(stopped.ok()) << "the rows behind the first would hang for ever";
  EXPECT_EQ(stopped.error().kind, ErrorKind::kSignal);
  EXPECT_EQ(dynamic_cast<RewardPool&>(*reward).num_replaced(), 0) << "it was told, and nobody had to be killed";
}

// One that does not listen is not waited for.
TEST_F(WorkerFaults, ARunThatIsStoppingKillsAWorkerThatIsDeaf) {
  const TempDir dir;
  std::atomic<bool> stopping = false;
  options_.mode = Isolation::kProcess;
  options_.num_workers = 1;
  auto made =
      make_reward_function(registry_, "faulty", {{"mark", (dir / "begun").string()}}, RunKey{7, &stopping}, options_);
  ASSERT_TRUE(made.ok()) << made.error().to_string();
  RewardFunction& reward = **made;
  std::thread stop = stop_at(dir / "begun", stopping);
  EXPECT_FALSE(reward.score(request(1, 0, 0), rows_of({"hang"}), nullptr).ok());
  stop.join();
  EXPECT_EQ(dynamic_cast<RewardPool&>(reward).num_replaced(), 1);
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
