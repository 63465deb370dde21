// Rows that wait for an update: their ids and columns outlive the step that they come from, also in a checkpoint.
#include "train/loop/carried_rows.h"

#include <gmock/gmock.h>

#include <algorithm>
#include <memory>

#include "support/temp_dir.h"

namespace mortise {
namespace {

using testing::ElementsAre;

// A step with two prompts and two rows each, of 1, 2, 0 and 1 tokens. Its values tell the step and the token.
struct Step {
  explicit Step(float first) {
    for (int64_t prompt = 0; prompt < 2; ++prompt) prompts.push_back({10 * static_cast<int64_t>(first), prompt});
    responses = {{1}, {2, 3}, {}, {4}};
    std::vector<TableRow> rows;
    for (size_t i = 0; i < 4; ++i) rows.push_back({prompts[i / 2], responses[i], static_cast<int64_t>(i / 2)});
    table = StepTable(std::move(rows));
    table.put<column::Advantages>({first, first + 1, first + 2, first + 3});
    table.put<column::ResponseMask>({1, 1, 0, 1});
    table.put<column::RowValid>({1, 1, 0, 1});
    table.put<column::OldLogProb>({-first, -first, -first, -first});
  }
  std::vector<std::vector<int64_t>> prompts, responses;
  StepTable table;
};

TEST(CarriedRows, AnUpdateTakesRowsThatWaitAndRowsOfTheStep) {
  CarriedRows carried;
  EXPECT_EQ(carried.size(), 0);
  {
    const Step first(10);
    carried.keep(first.table, std::vector<int64_t>{3, 1});
  }
  EXPECT_EQ(carried.size(), 2);
  Step second(20);
  std::vector<int64_t> places{5, 1, 0, 2, 3, 3};  // a row may come twice
  carried.sort_by_group(places);
  EXPECT_THAT(places, ElementsAre(0, 1, 2, 3, 3, 5));
  const StepTable part = carried.take(second.table, places);
  EXPECT_THAT(part.layout().row_offsets, ElementsAre(0, 1, 3, 4, 6, 8, 9));
  EXPECT_THAT(part.layout().row_id, ElementsAre(0, 1, 2, 3, 4, 5));
  EXPECT_THAT(part.layout().group_index, ElementsAre(0, 1, 2, 2, 2, 3)) << "groups of two steps differ";
  EXPECT_THAT(part.get<column::Advantages>(), ElementsAre(13, 11, 12, 20, 21, 22, 21, 22, 23));
  EXPECT_THAT(part.get<column::ResponseMask>(), ElementsAre(1, 1, 0, 1, 1, 0, 1, 0, 1));
  EXPECT_THAT(part.get<column::RowValid>(), ElementsAre(1, 1, 1, 1, 1, 1));
  EXPECT_THAT(part.row(0).response_ids, ElementsAre(4));
  EXPECT_THAT(part.row(1).prompt_ids, ElementsAre(100, 0));
  EXPECT_THAT(part.row(5).prompt_ids, ElementsAre(200, 1));
  // Some of them go on waiting, with rows of the second step.
  carried.keep(second.table, std::vector<int64_t>{1, 4, 5});
  EXPECT_EQ(carried.size(), 3);
  second.table = StepTable();
  const StepTable rest = carried.take(second.table, std::vector<int64_t>{0, 1, 2});
  EXPECT_THAT(rest.get<column::Advantages>(), ElementsAre(11, 12, 23));
  EXPECT_THAT(rest.layout().group_index, ElementsAre(0, 1, 1));
  carried.keep(second.table, {});
  EXPECT_EQ(carried.size(), 0);
}

// As the sampler's log-probs are a column only if all samples have theirs.
TEST(CarriedRows, AColumnThatSomeRowsLackIsLeftOut) {
  Step first(10);
  const Step second(20);
  first.table.drop<column::OldLogProb>();
  CarriedRows carried;
  carried.keep(first.table, std::vector<int64_t>{0});
  const StepTable part = carried.take(second.table, std::vector<int64_t>{0, 1});
  EXPECT_FALSE(part.has<column::OldLogProb>());
  EXPECT_TRUE(part.has<column::Advantages>());
  // A row without tokens lacks none.
  CarriedRows empty;
  empty.keep(first.table, std::vector<int64_t>{2});
  EXPECT_TRUE(empty.take(second.table, std::vector<int64_t>{0, 1}).has<column::OldLogProb>());
}

// Settings may have changed on a resume.
TEST(CarriedRows, FitIfTheyHaveWhatUpdatesReadOfTheStep) {
  Step first(10), second(20);
  CarriedRows carried;
  carried.keep(first.table, std::vector<int64_t>{0, 1});
  const std::vector<std::string> columns{"ref_log_prob", "advantages"};
  EXPECT_TRUE(carried.fit(second.table, columns)) << "the step has no ref_log_prob";
  second.table.put<column::RefLogProb>({1, 2, 3, 4});
  EXPECT_FALSE(carried.fit(second.table, columns));
  EXPECT_TRUE(carried.fit(second.table, {}));
  EXPECT_TRUE(CarriedRows().fit(second.table, columns));

  KeptTokens kept;
  kept.offsets = {0, 1, 2, 3, 4};
  kept.ids = {5, 6, 7, 8};
  second.table.keep(kept);
  EXPECT_FALSE(carried.fit(second.table, {}));
  EXPECT_TRUE(carried.take(second.table, std::vector<int64_t>{0, 2}).kept().empty()) << "one row has none";
  EXPECT_EQ(carried.take(second.table, std::vector<int64_t>{3}).kept().ids, (std::vector<int32_t>{6, 7}));
  carried.keep(second.table, std::vector<int64_t>{3});
  EXPECT_TRUE(carried.fit(second.table, columns));
  EXPECT_FALSE(carried.fit(first.table, {})) << "the step has no kept tokens";
  EXPECT_TRUE(carried.take(first.table, std::vector<int64_t>{0, 1}).kept().empty());
}

TEST(CarriedRows, ComeBackFromACheckpoint) {
  Step first(10);
  ExpertChoices experts;
  for (int64_t row = 0; row < 4; ++row) {
    const int64_t num_tokens = 2 + first.table.row_tokens(row);
    experts.append(std::vector<uint16_t>(static_cast<size_t>(2 * num_tokens), static_cast<uint16_t>(row)), num_tokens);
  }
  first.table.replay(experts);
  CarriedRows carried, loaded;
  carried.keep(first.table, std::vector<int64_t>{1, 3});
  StatefulRegistry registry, again;
  ASSERT_OK(registry.add(carried));
  ASSERT_OK(again.add(loaded));
  ASSERT_OK_AND_ASSIGN(const StateSnapshot snapshot, registry.save());
  ASSERT_OK(again.load(snapshot, "here"));
  ASSERT_EQ(loaded.size(), 2);
  const Step second(20);
  const std::vector<int64_t> places{0, 1, 2};
  const StepTable part = loaded.take(second.table, places), expected = carried.take(second.table, places);
  EXPECT_THAT(part.get<column::Advantages>(), ElementsAre(11, 12, 13, 20));
  EXPECT_THAT(part.layout().group_index, ElementsAre(0, 1, 2));
  EXPECT_THAT(part.row(1).response_ids, ElementsAre(4));
  EXPECT_EQ(part.experts().experts, expected.experts().experts);
  EXPECT_EQ(part.experts().of_row(0)[0], 1);
  EXPECT_EQ(part.experts().of_row(2)[0], kNoExpert) << "the second step has none";
}

}  // namespace
}  // namespace mortise
