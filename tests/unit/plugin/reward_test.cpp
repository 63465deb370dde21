// Calling a reward: failed rows, bad outputs, columns of every type.
#include "plugin/host/kinds/reward.h"

#include <cmath>

#include "test_packs.h"

namespace mortise {
namespace {

using nlohmann::ordered_json;
using test::error_of;
using testing::ElementsAre;
using testing::HasSubstr;

class RewardTest : public testing::Test {
 protected:
  Result<RewardOutput> score(const std::string& name, const RewardBatch& batch) {
    auto reward = Reward::create(registry_, name, ordered_json::object(), {});
    if (!reward.ok()) return reward.error();
    return reward->score(batch, nullptr);
  }
  PluginRegistry registry_ = test::open_registry({"rude"});
};

TEST_F(RewardTest, FailedRowsAreNaNAndKeepTheirReason) {
  RewardBatch batch;
  batch.num_rows = 4;
  for (const char* text : {"abc", "", "x", "y"}) batch.completion.append(text);
  ASSERT_OK_AND_ASSIGN(const RewardOutput out, score("row_fails", batch));
  EXPECT_EQ(out.rewards[0], 0.5);
  EXPECT_TRUE(std::isnan(out.rewards[1]));  // failed, though a number had been written
  EXPECT_TRUE(std::isnan(out.rewards[2]));  // does not apply
  EXPECT_EQ(out.rewards[3], 0.5);
  ASSERT_EQ(out.failed_rows.size(), 1U);
  EXPECT_EQ(out.failed_rows[0].row, 1);
  EXPECT_EQ(out.failed_rows[0].text, "cannot parse");
  ASSERT_EQ(out.row_values.size(), 1U);
  EXPECT_EQ(out.row_values[0].name, "length");
  EXPECT_EQ(out.row_values[0].value, 3);
}

TEST_F(RewardTest, InfinityFailsItsRowAndRowsOutsideTheCall) {
  RewardBatch batch;
  batch.num_rows = 2;
  ASSERT_OK_AND_ASSIGN(const RewardOutput out, score("inf_reward", batch));
  EXPECT_FALSE(std::isnan(out.rewards[0]));
  EXPECT_TRUE(std::isnan(out.rewards[1]));
  ASSERT_EQ(out.failed_rows.size(), 1U);
  EXPECT_EQ(failures_text(out.failed_rows),
            "row 1: gave the reward inf; a reward is a number, or NaN where it does not apply");
  EXPECT_THAT(error_of(score("row_outside", batch)), HasSubstr("called fail_row for row 2 of a batch of 2"));
}

TEST_F(RewardTest, WritesBesideTheRewardsAreSeenInCheckMode) {
  RunKey key;
  key.check_writes = true;
  RewardBatch batch;
  batch.num_rows = 3;
  batch.row_id = {7, 8, 9};
  batch.step = 5;
  auto good = Reward::create(registry_, "row_fails", ordered_json::object(), key);
  ASSERT_OK(good);
  ASSERT_OK_AND_ASSIGN(const RewardOutput out, good->score(batch, nullptr));
  EXPECT_EQ(out.rewards[0], 0.5);
  auto bad = Reward::create(registry_, "reward_behind", ordered_json::object(), key);
  ASSERT_OK(bad);
  EXPECT_THAT(error_of(bad->score(batch, nullptr)),
              testing::AllOf(HasSubstr("reward reward_behind@test.rude 1.0.0 ("), HasSubstr("score, step 5"),
                             HasSubstr("behind the end of output 'rewards', whose last row is row 9 of the step")));
}

TEST_F(RewardTest, ColumnsOfOtherLengthsAreTheEnginesBug) {
  RewardBatch batch;
  batch.num_rows = 2;
  batch.completion.append("only one");
  const auto result = score("row_fails", batch);
  ASSERT_FALSE(result.ok());
  EXPECT_EQ(result.error().kind, ErrorKind::kInternal);
}

TEST(DataColumnTest, HoldsTheValuesInItsType) {
  const auto column = [](ColumnType type, std::vector<ordered_json> values) {
    std::vector<const ordered_json*> pointers;
    for (const auto& value : values) pointers.push_back(value.is_string() && value == "ABSENT" ? nullptr : &value);
    return DataColumn::from_json("c", type, pointers);
  };
  const DataColumn text = column(ColumnType::kText, {"a", nullptr, "ABSENT", 7, 99.0, {1, "x"}});
  EXPECT_THAT(text.valid, ElementsAre(1, 0, 0, 1, 1, 1));
  std::vector<std::string> texts;
  for (size_t i = 0; i < 6; ++i) texts.emplace_back(text.text.row(i));
  EXPECT_THAT(texts, ElementsAre("a", "", "", "7", "99.0", R"([1,"x"])"));
  EXPECT_THAT(column(ColumnType::kI64, {1, "ABSENT", -3, 99.0}).i64, ElementsAre(1, 0, -3, 99));
  EXPECT_THAT(column(ColumnType::kF64, {1, 2.5}).f64, ElementsAre(1, 2.5));
  const DataColumn mixed = column(ColumnType::kJson, {1, "x", ordered_json{{"k", 2}}});
  EXPECT_EQ(mixed.text.row(1), "\"x\"");
  EXPECT_EQ(mixed.text.row(2), R"({"k":2})");
}

}  // namespace
}  // namespace mortise
