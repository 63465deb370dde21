// How rows are cut into micro-batches, by rows and by tokens.
#include "learn/update/micro_batches.h"

#include <gtest/gtest.h>

#include <algorithm>

namespace mortise {
namespace {

// Groups of `n` rows with the given response lengths; prompts of `prompt_length` tokens.
struct Fixture {
  std::vector<std::vector<int64_t>> prompts, responses;
  StepTable batch;
  Fixture(const std::vector<int64_t>& lengths, int64_t n, int64_t prompt_length) {
    for (const int64_t length : lengths) {
      prompts.emplace_back(static_cast<size_t>(prompt_length), 1);
      responses.emplace_back(static_cast<size_t>(length), 2);
    }
    std::vector<TableRow> rows;
    for (size_t i = 0; i < lengths.size(); ++i) rows.push_back({prompts[i], responses[i], static_cast<int64_t>(i) / n});
    batch = StepTable(std::move(rows));
  }
  [[nodiscard]] std::vector<int64_t> all() const { return all_rows(batch); }
  [[nodiscard]] int64_t tokens(const std::vector<int64_t>& rows) const {  // a group's prompt counts once
    int64_t sum = 0, group = -1;
    for (const int64_t row : rows) {
      const auto r = static_cast<size_t>(row);
      if (batch.row(row).group != group) sum += static_cast<int64_t>(prompts[r].size());
      group = batch.row(row).group;
      sum += batch.row_tokens(row);
    }
    return sum;
  }
};

std::vector<int64_t> sorted_rows(const std::vector<std::vector<int64_t>>& parts) {
  std::vector<int64_t> rows;
  for (const auto& part : parts) rows.insert(rows.end(), part.begin(), part.end());
  std::sort(rows.begin(), rows.end());
  return rows;
}

TEST(PlanMicroBatches, ByRowsAreNoMoreThanNeeded) {
  for (const int64_t most : {1, 2, 3, 5, 6, 7, 11, 12, 100}) {
    const Fixture f({1, 9, 2, 8, 3, 7, 4, 6, 5, 5, 0, 3}, 4, 2);
    const auto parts = plan_micro_batches(f.batch, f.all(), {most, 0});
    EXPECT_EQ(sorted_rows(parts), f.all()) << most;
    EXPECT_EQ(static_cast<int64_t>(parts.size()), (12 + most - 1) / most);
    for (const auto& part : parts) EXPECT_LE(static_cast<int64_t>(part.size()), most);
  }
}

// 16 rows, 4 and 3 at a time. In their order, the largest pass would have 700 and 683 tokens.
TEST(PlanMicroBatches, ByRowsAreBalancedByLength) {
  const Fixture f({400, 3, 250, 7, 90, 120, 33, 310, 5, 61, 200, 18, 77, 150, 9, 44}, 1, 10);
  for (const auto& [most, longest_of_all] : {std::pair<int64_t, int64_t>{4, 500}, {3, 440}, {1, 410}}) {
    int64_t longest = 0;
    for (const auto& part : plan_micro_batches(f.batch, f.all(), {most, 0}))
      longest = std::max(longest, f.tokens(part));
    EXPECT_LE(longest, longest_of_all) << most;
  }
}

TEST(PlanMicroBatches, ByRowsGroupsStayTogetherWhereTheyFit) {
  const Fixture f({9, 1, 1, 1, 5, 5, 5, 5, 2, 2, 2, 2}, 4, 10);
  const auto groups_of = [&](const std::vector<int64_t>& part) {
    std::vector<int64_t> groups;
    for (const int64_t row : part) groups.push_back(row / 4);
    groups.erase(std::unique(groups.begin(), groups.end()), groups.end());
    return groups.size();
  };
  for (const int64_t most : {4, 2, 1}) {
    for (const auto& part : plan_micro_batches(f.batch, f.all(), {most, 0})) EXPECT_EQ(groups_of(part), 1U) << most;
  }
  // 12 rows in 4 passes of 3: each group gives one whole pass, the three rows that are left over share the last.
  size_t num_shared = 0;
  for (const auto& part : plan_micro_batches(f.batch, f.all(), {3, 0})) num_shared += groups_of(part) > 1 ? 1 : 0;
  EXPECT_EQ(num_shared, 1U);
  // A group of 6 in two passes: cut in the order of its rows they would have 42 and 16 tokens.
  const Fixture g({12, 11, 9, 1, 2, 3}, 6, 10);
  for (const auto& part : plan_micro_batches(g.batch, g.all(), {3, 0})) EXPECT_LE(g.tokens(part), 32);
}

TEST(PlanMicroBatches, RowsWithoutAdvantageStandApart) {
  Fixture f({4, 4, 4, 4, 4, 4}, 2, 3);
  std::ranges::fill(f.batch.make<column::Advantages>().subspan(8, 8), 1.0F);  // the second group
  for (const MicroBatchOptions cut : {MicroBatchOptions{2, 0}, {4, 0}, {0, 30}}) {
    for (const auto& part : plan_micro_batches(f.batch, f.all(), cut)) {
      const bool first = part.front() / 2 == 1;
      for (const int64_t row : part) EXPECT_EQ(row / 2 == 1, first) << cut.rows;
    }
  }
  EXPECT_EQ(plan_micro_batches(f.batch, f.all(), {6, 0}).size(), 1U);  // the requested number holds them all
}

TEST(PlanMicroBatches, ByTokensKeepsTheBudgetAndEveryRowOnce) {
  for (const int64_t budget : {9, 12, 20, 31, 1000}) {
    const Fixture f({1, 9, 2, 8, 3, 7, 4, 6, 5, 5, 0, 3}, 4, 2);
    const auto parts = plan_micro_batches(f.batch, f.all(), {0, budget});
    EXPECT_EQ(sorted_rows(parts), f.all()) << budget;
    for (const auto& part : parts) {
      if (part.size() > 1) {
        EXPECT_LE(f.tokens(part), budget);
      }
    }
  }
}

TEST(PlanMicroBatches, GroupsStayTogetherWhereTheyFit) {
  const Fixture f({5, 5, 5, 5, 5, 5}, 3, 10);
  const auto parts = plan_micro_batches(f.batch, f.all(), {0, 25});
  ASSERT_EQ(parts.size(), 2U);
  for (const auto& part : parts) {
    EXPECT_EQ(f.batch.row(part.front()).group, f.batch.row(part.back()).group);
  }
}

// The longest row goes into the emptiest micro-batch. None is longer than the mean by more than one row, and none is
// unnecessary.
TEST(PlanMicroBatches, ByTokensAreBalancedByLength) {
  const Fixture f({400, 3, 250, 7, 90, 120, 33, 310, 5, 61, 200, 18, 77, 150, 9, 44}, 1, 10);
  for (const int64_t budget : {450, 700, 1200}) {
    const auto parts = plan_micro_batches(f.batch, f.all(), {0, budget});
    const int64_t total = f.tokens(f.all());
    EXPECT_LE(static_cast<int64_t>(parts.size()), (total + budget - 1) / budget + 1) << budget;
    int64_t longest = 0, shortest = total;
    for (const auto& part : parts) {
      longest = std::max(longest, f.tokens(part));
      shortest = std::min(shortest, f.tokens(part));
    }
    EXPECT_LE(longest, budget);
    EXPECT_LE(longest - shortest, 70) << budget;  // cut in the order of the rows they differ by hundreds
  }
}

TEST(PlanMicroBatches, ARowLongerThanTheBudgetStandsAlone) {
  const Fixture f({50, 2, 2}, 1, 1);
  const auto parts = plan_micro_batches(f.batch, f.all(), {0, 10});
  EXPECT_EQ(sorted_rows(parts), f.all());
  for (const auto& part : parts) {
    if (std::find(part.begin(), part.end(), 0) != part.end()) {
      EXPECT_EQ(part.size(), 1U);
    }
  }
}

}  // namespace
}  // namespace mortise
