// Rewards in workers: the same results as in this process, for any number of workers and any parts.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include "worker_fixture.h"

namespace mortise::test {
namespace {

using nlohmann::ordered_json;
using testing::HasSubstr;

std::vector<std::string> mixed_rows(int count) {
  std::vector<std::string> rows;
  for (int i = 0; i < count; ++i) {
    rows.push_back(i % 17 == 3 ? "throw" : i % 19 == 5 ? "none" : std::string(static_cast<size_t>(i % 31), 'x'));
  }
  return rows;
}

void expect_same(const RewardOutput& a, const RewardOutput& b) {
  ASSERT_EQ(a.rewards.size(), b.rewards.size());
  for (size_t i = 0; i < a.rewards.size(); ++i) {
    EXPECT_TRUE(a.rewards[i] == b.rewards[i] || (std::isnan(a.rewards[i]) && std::isnan(b.rewards[i]))) << "row " << i;
  }
  ASSERT_EQ(a.row_values.size(), b.row_values.size());
  for (size_t i = 0; i < a.row_values.size(); ++i) {
    EXPECT_EQ(a.row_values[i].row, b.row_values[i].row);
    EXPECT_EQ(a.row_values[i].value, b.row_values[i].value);
  }
}

using WorkerPool = WorkerTest;

TEST_F(WorkerPool, ResultsDoNotDependOnTheNumberOfWorkersOrOnTheProcess) {
  const RewardBatch rows = rows_of(mixed_rows(500));
  auto three = make("faulty", 3), one = make("faulty", 1);
  MetricSet metrics_three, metrics_one;
  ASSERT_OK_AND_ASSIGN(const RewardOutput a, three->score(request(500), rows, &metrics_three));
  ASSERT_OK_AND_ASSIGN(const RewardOutput b, one->score(request(500), rows, &metrics_one));
  expect_same(a, b);
  EXPECT_EQ(failures(a), failures(b));
  EXPECT_EQ(failures(a).size(), 30U);
  EXPECT_THAT(failures(a).at(3), HasSubstr("cannot parse"));
  EXPECT_EQ(metrics_three.value("faulty/length"), metrics_one.value("faulty/length"));

  mode_ = Isolation::kNone;
  RewardBatch good = rows_of(std::vector<std::string>(100, "abc"));
  auto local = make("faulty");
  MetricSet metrics_local, metrics_pool;
  ASSERT_OK_AND_ASSIGN(const RewardOutput c, local->score(request(100), good, &metrics_local));
  ASSERT_OK_AND_ASSIGN(const RewardOutput d, three->score(request(100), good, &metrics_pool));
  expect_same(c, d);
  EXPECT_EQ(metrics_local.value("faulty/length"), 3.0);
  EXPECT_EQ(metrics_pool.value("faulty/length"), 3.0);
}

TEST_F(WorkerPool, RowsMayComeInPartsAndInAnyOrder) {
  const std::vector<std::string> texts = mixed_rows(60);
  auto reward = make("faulty", 2);
  ASSERT_OK_AND_ASSIGN(const RewardOutput whole, reward->score(request(60), rows_of(texts), nullptr));
  ASSERT_OK(reward->begin(request(60)));
  for (int64_t part = 3; part >= 0; --part) {
    RewardBatch rows;
    for (int64_t i = part; i < 60; i += 4) {
      rows.completion.append(texts[static_cast<size_t>(i)]);
      rows.row_id.push_back(i);
      ++rows.num_rows;
    }
    ASSERT_OK(reward->add(rows));
    ASSERT_OK(reward->advance(0));
  }
  ASSERT_OK_AND_ASSIGN(const RewardOutput parts, reward->finish(nullptr));
  expect_same(whole, parts);
}

TEST_F(WorkerPool, ColumnsAndIdsArriveAsTheyAre) {
  auto reward = make_reward_function(registry_, "plain", ordered_json::object(), {}, options_);
  RewardBatch rows = rows_of({"a", "", "\xf0\x9f\x98\x80", std::string(1 << 20, 'z')});
  const std::vector<ordered_json> values = {1, nullptr, 2.5, 4};
  std::vector<const ordered_json*> pointers;
  for (const ordered_json& value : values) pointers.push_back(&value);
  rows.columns.push_back(DataColumn::from_json("level", ColumnType::kF64, pointers));
  for (int64_t i = 0; i < 4; ++i) rows.completion_ids.append(std::vector<int64_t>(static_cast<size_t>(i), i));
  ASSERT_TRUE(reward.ok()) << reward.error().to_string();
  ASSERT_OK_AND_ASSIGN(const RewardOutput out, (*reward)->score(request(4), rows, nullptr));
  EXPECT_THAT(out.rewards, testing::ElementsAre(1, 0, 4, 1 << 20));
}

TEST_F(WorkerPool, TokenRewardsComeBackAsFromThisProcess) {
  std::vector<std::string> texts;
  for (int i = 0; i < 70; ++i) texts.push_back(i == 5 ? "nan" : i == 11 ? "unset" : i == 23 ? "throw" : "x");
  RewardBatch rows = rows_of(texts);
  for (int64_t i = 0; i < rows.num_rows; ++i)
    rows.completion_ids.append(std::vector<int64_t>(static_cast<size_t>(i % 7), 4 * i));
  auto two = make("steps", 2);
  ASSERT_OK_AND_ASSIGN(const RewardOutput pool, two->score(request(70), rows, nullptr));
  mode_ = Isolation::kNone;
  ASSERT_OK_AND_ASSIGN(const RewardOutput local, make("steps")->score(request(70), rows, nullptr));
  expect_same(pool, local);
  EXPECT_EQ(failures(pool), failures(local));
  EXPECT_THAT(failures(pool).at(5), HasSubstr("gave the token reward nan at token 1 of the completion"));
  EXPECT_THAT(failures(pool).at(11), HasSubstr("gave token rewards, and no reward of the row"));
  EXPECT_THAT(failures(pool).at(23), HasSubstr("cannot parse"));
  EXPECT_EQ(failures(pool).size(), 3U);
  ASSERT_EQ(pool.token_rewards.size(), 70U);
  for (size_t i = 0; i < 70; ++i) {
    const bool failed = failures(pool).count(static_cast<int64_t>(i)) == 1;
    EXPECT_THAT(pool.token_rewards[i],
                testing::ElementsAreArray(std::vector<float>(failed ? 0 : i % 7, static_cast<float>(i))));
    EXPECT_EQ(pool.token_rewards[i], local.token_rewards[i]) << i;
  }
  // Longer rows than there was room for, and a crash among them.
  RewardBatch longer = rows_of({"x", "crash", "x"});
  for (int64_t i = 0; i < 3; ++i) longer.completion_ids.append(std::vector<int64_t>(5000, 4 + 4 * i));
  ASSERT_OK_AND_ASSIGN(const RewardOutput again, two->score(request(3), longer, nullptr));
  EXPECT_EQ(again.token_rewards[0], std::vector<float>(5000, 1));
  EXPECT_TRUE(again.token_rewards[1].empty());
  EXPECT_EQ(again.token_rewards[2], std::vector<float>(5000, 3));
  mode_ = Isolation::kProcess;
  EXPECT_TRUE(make("plain")->score(request(3), longer, nullptr)->token_rewards.empty()) << "it declares none";
}

// A call that fails is made again in the pieces that workers would take, so that only they fail that must.
TEST_F(WorkerPool, InThisProcessABadRowOrGroupFailsAloneToo) {
  const RewardBatch rows = rows_of({"a", "bc", "throw", "d", "inf", "none"}, 2);
  for (const char* name : {"faulty", "whole_group"}) {
    mode_ = Isolation::kProcess;
    MetricSet of_pool, of_local;
    ASSERT_OK_AND_ASSIGN(const RewardOutput pool, make(name)->score(request(6), rows, &of_pool));
    mode_ = Isolation::kNone;
    ASSERT_OK_AND_ASSIGN(const RewardOutput local, make(name)->score(request(6), rows, &of_local));
    expect_same(pool, local);
    EXPECT_EQ(failures(pool), failures(local)) << name;
    EXPECT_EQ(of_pool.value("faulty/length"), of_local.value("faulty/length"));
  }
  ASSERT_OK_AND_ASSIGN(const RewardOutput groups, make("whole_group")->score(request(6), rows, nullptr));
  EXPECT_EQ(failures(groups).size(), 2U);
  EXPECT_EQ(failures(groups).at(2), "cannot parse (INVALID_ARGUMENT)");
  EXPECT_FALSE(make("whole_batch")->score(request(6), rows, nullptr).ok()) << "there are no pieces";
  // A reward with state has already seen the rows, so the host does not repeat the call.
  auto strict = make("strict_counter");
  EXPECT_FALSE(strict->score(request(6), rows, nullptr).ok());
  EXPECT_EQ(strict->score(request(1), rows_of({"a"}), nullptr)->rewards[0], 2);
}

TEST_F(WorkerPool, InThisProcessThreadsTakeRowsWhereTheyMay) {
  mode_ = Isolation::kNone;
  MetricSet metrics;
  const auto meets = make("meets");
  ASSERT_OK_AND_ASSIGN(const RewardOutput out, meets->score(request(3), rows_of({"a", "b", "c"}), &metrics));
  EXPECT_THAT(out.rewards, testing::ElementsAre(1, 1, 1));
  ASSERT_EQ(out.row_values.size(), 3U);
  for (size_t i = 0; i < 3; ++i) EXPECT_EQ(out.row_values[i].value, static_cast<double>(i));
  ASSERT_OK_AND_ASSIGN(const RewardOutput none, meets->score(request(0), rows_of({}), nullptr));
  EXPECT_TRUE(none.rewards.empty());
}

TEST_F(WorkerPool, GroupsAndBatchesStayWhole) {
  const RewardBatch rows = rows_of({"a", "b", "c", "d", "e", "f", "g"}, 3);
  ASSERT_OK_AND_ASSIGN(const RewardOutput groups, make("whole_group", 3)->score(request(7), rows, nullptr));
  EXPECT_THAT(groups.rewards, testing::ElementsAre(3, 3, 3, 3, 3, 3, 1));
  ASSERT_OK_AND_ASSIGN(const RewardOutput batch, make("whole_batch", 3)->score(request(7), rows, nullptr));
  EXPECT_THAT(batch.rewards, testing::Each(7));
  ASSERT_OK_AND_ASSIGN(const RewardOutput empty, make("whole_batch")->score(request(0), rows_of({}), nullptr));
  EXPECT_TRUE(empty.rewards.empty());
}

TEST_F(WorkerPool, StateLivesInOneWorkerAndCanBeTakenOver) {
  const RewardBatch rows = rows_of({"a", "b", "c"});
  auto first = make("counter", 4);
  ASSERT_OK(first->score(request(3), rows, nullptr));
  ASSERT_OK_AND_ASSIGN(const RewardOutput second_batch, first->score(request(3), rows, nullptr));
  EXPECT_THAT(second_batch.rewards, testing::ElementsAre(4, 5, 6));
  ASSERT_OK_AND_ASSIGN(const std::optional<std::string> state, first->save_state());
  ASSERT_TRUE(state.has_value());

  auto resumed = make("counter", 2);
  ASSERT_OK(resumed->load_state(*state));
  ASSERT_OK_AND_ASSIGN(const RewardOutput after, resumed->score(request(3), rows, nullptr));
  EXPECT_THAT(after.rewards, testing::ElementsAre(7, 8, 9));
  EXPECT_FALSE(resumed->load_state("too long for a number").ok());
  ASSERT_OK_AND_ASSIGN(const auto none, make("plain")->save_state());
  EXPECT_FALSE(none.has_value());
}

TEST_F(WorkerPool, RunsElsewhereAndLeavesNothingOpen) {
  const size_t before = num_open_files();
  {
    auto reward = make("probe", 1);
    const RewardBatch rows = rows_of({"pid", "descriptors", "pid"});
    ASSERT_OK_AND_ASSIGN(const RewardOutput out, reward->score(request(3), rows, nullptr));
    EXPECT_NE(out.rewards[0], static_cast<double>(::getpid()));
    EXPECT_EQ(out.rewards[0], out.rewards[2]);
    EXPECT_LE(out.rewards[1], 9);  // the standard three, connection, pack, areas: none of the trainer's
  }
  EXPECT_EQ(num_open_files(), before);
}

TEST_F(WorkerPool, LimitsHold) {
  const bool kLimitsMemory = !test::kSanitized;  // sanitizers map terabytes
  const RewardBatch rows = rows_of({"socket", "write", "read", "program", kLimitsMemory ? "memory" : "write"});
  options_.limits.memory_bytes = int64_t{1} << 30;
  options_.limits.network = options_.limits.write_files = options_.limits.start_programs = false;
  ASSERT_OK_AND_ASSIGN(const RewardOutput out, make("probe", 1)->score(request(5), rows, nullptr));
  EXPECT_EQ(out.rewards[0], 0);
  EXPECT_EQ(out.rewards[1], 0);
  EXPECT_EQ(out.rewards[2], 1);
  EXPECT_EQ(out.rewards[3], 0);
  if (kLimitsMemory) {
    EXPECT_TRUE(std::isnan(out.rewards[4]));
    EXPECT_EQ(failures(out).count(4), 1U);
  }

  const TempDir dir;
  options_.limits = {};
  auto free = make("probe", 1, {{"path", (dir.path() / "file").string()}});
  ASSERT_OK_AND_ASSIGN(const RewardOutput all,
                       free->score(request(4), rows_of({"socket", "write", "read", "program"}), nullptr));
  EXPECT_THAT(all.rewards, testing::Each(1));
}

TEST_F(WorkerPool, AnErrorOfCreateIsAnErrorAtOnce) {
  const auto made = make_reward_function(registry_, "faulty", {{"dies_in_create", 2}}, {}, options_);
  ASSERT_FALSE(made.ok());
  EXPECT_THAT(made.error().to_string(), HasSubstr("no such judge"));
  const auto dead = make_reward_function(registry_, "faulty", {{"dies_in_create", 1}}, {}, options_);
  ASSERT_FALSE(dead.ok());
  EXPECT_THAT(dead.error().to_string(), HasSubstr("ended before they were ready, the last by "));
}

TEST_F(WorkerPool, WhoTakesNoHostMemoryIsRefusedBeforeItsFirstCall) {
  PluginRegistry alone = open_registry({"cuda_alone"});
  const auto made = make_reward_function(alone, "one", ordered_json::object(), {}, options_);
  ASSERT_FALSE(made.ok());
  EXPECT_THAT(made.error().to_string(), testing::AllOf(HasSubstr("one@test.cuda_alone"), HasSubstr("R46")));
}

}  // namespace
}  // namespace mortise::test
