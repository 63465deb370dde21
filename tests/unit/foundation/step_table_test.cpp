// The table of a step: columns, views, the rows of a slice, checkpoints; and that nothing of these knows a column's name.
#include "foundation/batch/step_table.h"

#include <gmock/gmock.h>

#include <algorithm>

#include "support/temp_dir.h"

namespace mortise {
namespace {

using testing::ElementsAre;

// Columns that no stage makes and no plugin sees: what carries them can only know them from here.
using Novelty = Column<"novelty", float, Level::kToken>;
using Kept = Column<"kept", uint8_t, Level::kToken>;
using Difficulty = Column<"difficulty", float, Level::kRow>;

class StepTableTest : public testing::Test {
 protected:
  StepTableTest() {
    table_.put<Novelty>({10, 11, 12, 20, 21, 22});
    table_.put<Kept>({1, 0, 1, 1, 1, 0});
    table_.put<Difficulty>({0.25F, 0.5F, 0.75F});
  }
  // Rows of 3, 0 and 3 tokens, the last two of one prompt.
  const std::vector<int64_t> prompt_{7, 8}, ids_{1, 2, 3};
  StepTable table_{{{prompt_, ids_, 4}, {prompt_, {}, 5}, {prompt_, ids_, 5}}};
};

TEST_F(StepTableTest, RowsLieOneBehindTheOther) {
  EXPECT_EQ(table_.num_rows(), 3);
  EXPECT_EQ(table_.num_tokens(), 6);
  const Layout layout = table_.layout();
  EXPECT_THAT(layout.row_offsets, ElementsAre(0, 3, 3, 6));
  EXPECT_THAT(layout.row_id, ElementsAre(0, 1, 2));
  EXPECT_THAT(layout.group_index, ElementsAre(4, 5, 5));
  EXPECT_THAT(table_.of_row<Novelty>(2), ElementsAre(20, 21, 22));
  EXPECT_TRUE(table_.of_row<Novelty>(1).empty());
}

TEST_F(StepTableTest, AColumnIsReplacedChangedAndDropped) {
  table_.edit<Novelty>()[1] = -1;
  EXPECT_THAT(table_.get<Novelty>(), ElementsAre(10, -1, 12, 20, 21, 22));
  table_.make<Novelty>();
  EXPECT_THAT(table_.get<Novelty>(), testing::Each(0.0F));
  table_.drop<Novelty>();
  EXPECT_FALSE(table_.has<Novelty>());
  EXPECT_TRUE(table_.get<Novelty>().empty());
  EXPECT_TRUE(table_.edit<Novelty>().empty());
}

TEST_F(StepTableTest, ViewsBorrow) {
  const StepView whole = table_.view();
  EXPECT_EQ(whole.get<Novelty>().data(), table_.get<Novelty>().data());
  EXPECT_TRUE(whole.has("difficulty"));
  const std::vector<int64_t> offsets{0, 1, 3};
  StepView part = table_.view(2, 5, {offsets, {}, {}});
  EXPECT_EQ(part.layout.num_tokens(), 3);
  EXPECT_THAT(part.get<Novelty>(), ElementsAre(12, 20, 21));
  EXPECT_THAT(part.get<Kept>(), ElementsAre(1, 1, 1));
  EXPECT_FALSE(part.has<Difficulty>()) << "its rows are others";
  part.set<Kept>({});
  EXPECT_FALSE(part.has<Kept>());
  EXPECT_TRUE(table_.has<Kept>());
}

TEST_F(StepTableTest, RowsAreTakenWithAllTheirColumns) {
  const std::vector<int64_t> rows{2, 1};
  const StepTable part = table_.take(rows, {8, 3});
  EXPECT_THAT(part.layout().row_offsets, ElementsAre(0, 3, 3));
  EXPECT_THAT(part.layout().row_id, ElementsAre(8, 3));
  EXPECT_THAT(part.layout().group_index, ElementsAre(5, 5));
  EXPECT_THAT(part.get<Novelty>(), ElementsAre(20, 21, 22));
  EXPECT_THAT(part.get<Kept>(), ElementsAre(1, 1, 0));
  EXPECT_THAT(part.get<Difficulty>(), ElementsAre(0.75F, 0.5F));
  EXPECT_EQ(part.row(0).response_ids.data(), ids_.data());
}

TEST_F(StepTableTest, ColumnsComeBackFromACheckpoint) {
  const auto rows = [&] { return std::vector<TableRow>{{prompt_, ids_, 4}, {prompt_, {}, 5}, {prompt_, ids_, 5}}; };
  StepTable table(rows());
  table.put<column::Advantages>({10, 11, 12, 20, 21, 22});
  table.put<column::ResponseMask>({1, 0, 1, 1, 1, 0});
  table.put<column::RewardBaselines>({0.25F, 0.5F, 0.75F});
  table.put<column::RowValid>({1, 0, 1});
  StateSnapshot snapshot;
  StateWriter writer("step", &snapshot);
  writer.put_int("other", 1);
  table.save_columns(writer);
  ASSERT_OK(writer.status());
  std::ranges::sort(snapshot.tensors, {}, &TensorView::name);  // as StatefulRegistry leaves them
  StepTable loaded(rows());
  StateReader reader("step", &snapshot, "here");
  ASSERT_OK(loaded.load_columns(reader));
  EXPECT_THAT(loaded.get<column::Advantages>(), ElementsAre(10, 11, 12, 20, 21, 22));
  EXPECT_THAT(loaded.get<column::ResponseMask>(), ElementsAre(1, 0, 1, 1, 1, 0));
  EXPECT_THAT(loaded.get<column::RewardBaselines>(), ElementsAre(0.25F, 0.5F, 0.75F));
  EXPECT_THAT(loaded.get<column::RowValid>(), ElementsAre(1, 0, 1));
  EXPECT_THAT(reader.unread_keys(), ElementsAre("other"));

  StepTable shorter({{prompt_, ids_, 4}});
  StateReader again("step", &snapshot, "here");
  const Result<> refused = shorter.load_columns(again);
  ASSERT_FALSE(refused.ok());
  EXPECT_THAT(refused.error().what, testing::HasSubstr("reward_baselines has 3 values, but the step has 1 rows"));
}

// Kept tokens follow their rows, and checkpoints hold them.
TEST_F(StepTableTest, KeptTokensFollowTheirRows) {
  KeptTokens kept;
  kept.offsets = {0, 1, 3, 4, 6, 7, 10};
  kept.ids = {1, 2, 5, 3, 1, 9, 2, 3, 6, 8};
  kept.is_seen = {0, 1, 0, 0, 0, 1, 1, 0, 0, 1};
  kept.shift = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9};
  kept.repetition_penalty = 1.5;
  table_.keep(kept);
  const std::vector<int64_t> picked{2, 1, 2};
  const StepTable part = table_.take(picked, {});
  EXPECT_THAT(part.kept().offsets, ElementsAre(0, 2, 3, 6, 8, 9, 12));
  EXPECT_THAT(part.kept().ids, ElementsAre(1, 9, 2, 3, 6, 8, 1, 9, 2, 3, 6, 8));
  EXPECT_THAT(part.kept().is_seen, ElementsAre(0, 1, 1, 0, 0, 1, 0, 1, 1, 0, 0, 1));
  EXPECT_THAT(part.kept().shift, ElementsAre(4, 5, 6, 7, 8, 9, 4, 5, 6, 7, 8, 9));
  EXPECT_EQ(part.kept().repetition_penalty, 1.5);

  table_.drop<Novelty>();
  table_.drop<Kept>();
  table_.drop<Difficulty>();
  const auto snapshot_of = [](const StepTable& table) {
    auto snapshot = std::make_unique<StateSnapshot>();
    StateWriter writer("step", snapshot.get());
    table.save_columns(writer);
    EXPECT_TRUE(writer.status().ok());
    std::ranges::sort(snapshot->tensors, {}, &TensorView::name);
    return snapshot;
  };
  const auto saved = snapshot_of(table_);
  StepTable loaded({{prompt_, ids_, 4}, {prompt_, {}, 5}, {prompt_, ids_, 5}}), shorter({{prompt_, ids_, 4}});
  StateReader reader("step", saved.get(), "here"), again("step", saved.get(), "here");
  ASSERT_OK(loaded.load_columns(reader));
  EXPECT_EQ(loaded.kept().offsets, kept.offsets);
  EXPECT_EQ(loaded.kept().ids, kept.ids);
  EXPECT_EQ(loaded.kept().shift, kept.shift);
  EXPECT_EQ(loaded.kept().repetition_penalty, 1.5);
  EXPECT_FALSE(shorter.load_columns(again).ok());
}

// What the header declares counts, not what the file claims: a column of another type would be read as what it is not.
TEST_F(StepTableTest, AColumnOfAnotherTypeLengthOrNameIsRefused) {
  const auto error_of = [&](const std::string& key, const auto& values) {
    StateSnapshot snapshot;
    StateWriter writer("step", &snapshot);
    writer.put_vector(key, values);
    StepTable table({{prompt_, ids_, 4}, {prompt_, ids_, 5}});
    StateReader reader("step", &snapshot, "here");
    const Result<> loaded = table.load_columns(reader);
    return loaded.ok() ? std::string() : loaded.error().to_string();
  };
  const size_t tokens = 2 * ids_.size();
  EXPECT_EQ(error_of("tokens.advantages", std::vector<float>(tokens)), "");
  EXPECT_THAT(error_of("tokens.advantages", std::vector<uint8_t>(tokens)), testing::HasSubstr("tokens.advantages"));
  EXPECT_THAT(error_of("tokens.response_mask", std::vector<float>(tokens)), testing::HasSubstr("response_mask"));
  EXPECT_THAT(error_of("tokens.advantages", std::vector<float>(2)), testing::HasSubstr("has 2 values"));
  EXPECT_THAT(error_of("rows.advantages", std::vector<float>(2)), testing::HasSubstr("does not know"));
  EXPECT_THAT(error_of("tokens.novelty", std::vector<float>(tokens)), testing::HasSubstr("does not know"));
}

SampleBatch three_samples() {
  SampleBatch samples;
  samples.rows.resize(3);
  samples.rows[0].token_ids = {1, 2};
  samples.rows[1].token_ids = {3};
  samples.rows[1].finish_reason = FinishReason::kAbort;
  samples.rows[2].token_ids = {4, 5, 6};
  samples.rows[2].finish_reason = FinishReason::kLength;
  return samples;
}

TEST(StepTableOfSamples, AbortedRowsAreMaskedAndCutOnesWhereAsked) {
  PromptBatch prompts;
  prompts.prompts.resize(1);
  SampleBatch samples = three_samples();
  const StepTable table = make_step_table(prompts, samples);
  EXPECT_THAT(table.row_offsets(), ElementsAre(0, 2, 3, 6));
  EXPECT_THAT(table.get<column::ResponseMask>(), ElementsAre(1, 1, 0, 1, 1, 1));
  samples.mask_truncated = true;
  EXPECT_THAT(make_step_table(prompts, samples).get<column::SampleMask>(), ElementsAre(1, 1, 0, 0, 0, 0));
}

TEST(StepTableOfSamples, LogProbsOfTheSamplerAreThereIfAllSamplesHaveThem) {
  PromptBatch prompts;
  prompts.prompts.resize(1);
  SampleBatch samples = three_samples();
  samples.rows[0].log_prob = {-1, -2};
  samples.rows[2].log_prob = {-4, -5, -6};
  EXPECT_FALSE(make_step_table(prompts, samples).has<column::RolloutLogProb>());
  samples.rows[1].log_prob = {-3};
  EXPECT_THAT(make_step_table(prompts, samples).get<column::RolloutLogProb>(), ElementsAre(-1, -2, -3, -4, -5, -6));
}

}  // namespace
}  // namespace mortise
