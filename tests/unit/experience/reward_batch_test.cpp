// The rows that a reward sees.
#include "experience/reward/reward_runner.h"

#include <gtest/gtest.h>

namespace mortise {
namespace {

TEST(RewardBatch, RowsCarryTheirPromptsColumns) {
  PromptBatch prompts;
  prompts.prompts.resize(2);
  prompts.prompts[0].text = "p0";
  prompts.prompts[0].columns = Json{{"answer", "a"}, {"level", 3}};
  prompts.prompts[1].text = "p1";
  prompts.prompts[1].columns = Json{{"answer", "b"}};
  SampleBatch samples;
  samples.num_samples_per_prompt = 2;
  for (int64_t row = 0; row < 4; ++row) {
    Sample& sample = samples.rows.emplace_back();
    sample.prompt_index = row / 2;
    sample.sample_index = row % 2;
    sample.token_ids = {row, 9};
    sample.text = "c" + std::to_string(row);
  }
  const RewardBatch batch = make_reward_batch(
      prompts, samples, {{"answer", ColumnType::kText}, {"level", ColumnType::kF64}, {"none", ColumnType::kI64}},
      {5, 8, true});
  EXPECT_EQ(batch.num_rows, 4);
  EXPECT_EQ(batch.prompt.row(2), "p1");
  EXPECT_EQ(batch.completion.row(3), "c3");
  EXPECT_EQ(batch.group_index, (std::vector<int64_t>{0, 0, 1, 1}));
  EXPECT_EQ(batch.sample_index, (std::vector<int64_t>{0, 1, 0, 1}));
  EXPECT_TRUE(batch.is_validation);
  ASSERT_EQ(batch.columns.size(), 3U);
  EXPECT_EQ(batch.columns[0].name, "answer");
  EXPECT_EQ(batch.columns[0].text.row(3), "b");
  EXPECT_EQ(batch.columns[1].type, ColumnType::kF64) << "that of the data set, not of the batch";
  EXPECT_EQ(batch.columns[2].valid, (std::vector<uint8_t>{0, 0, 0, 0}));
  EXPECT_EQ(batch.columns[1].valid, (std::vector<uint8_t>{1, 1, 0, 0}));
}

}  // namespace
}  // namespace mortise
