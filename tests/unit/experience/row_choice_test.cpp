// Which rows are learnt from: the best of each group, and PF-PPO's draw.
#include "experience/selection/row_choice.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <map>

namespace mortise {
namespace {

constexpr double kUnscored = std::numeric_limits<double>::quiet_NaN();

TEST(RowChoice, TheBestRowsOfAGroupAreThoseWithTheHighestRewards) {
  const std::vector<double> rewards{1, 3, 3, 2, kUnscored, -5, kUnscored, -6};
  EXPECT_EQ(best_rows(rewards, 4, 2), (std::vector<uint8_t>{0, 1, 1, 0, 0, 1, 0, 1}));
  EXPECT_EQ(best_rows(rewards, 4, 1), (std::vector<uint8_t>{0, 1, 0, 0, 0, 1, 0, 0}));
  EXPECT_EQ(best_rows(rewards, 4, 9), (std::vector<uint8_t>(8, 1)));
}

// verl's compute_pf_ppo_reweight_data.
TEST(RowChoice, WeightsOfTheDrawAreVerls) {
  const std::vector<double> scores{2, -1, 0, 2, -3};
  const auto weights = [&](Reweight method, double power = 2.0) { return draw_weights(scores, {method, power}); };
  const auto expect = [](const std::vector<double>& have, const std::vector<double>& want) {
    ASSERT_EQ(have.size(), want.size());
    for (size_t i = 0; i < want.size(); ++i) EXPECT_DOUBLE_EQ(have[i], want[i] + 1e-8) << i;
  };
  expect(weights(Reweight::kPow), {4, 1, 0, 4, 9});
  expect(weights(Reweight::kPow, 1.0), {2, 1, 0, 2, 3});
  expect(weights(Reweight::kMaxMin), {1, 0, 0, 1, 1});
  expect(weights(Reweight::kMaxRandom), {0.4, 0.1, 0.1, 0.4, 0.1});
}

TEST(RowChoice, RowsAreDrawnByTheirWeights) {
  std::vector<double> scores(4000, 0.0);
  for (size_t i = 0; i < scores.size(); i += 4) scores[i] = 1.0;        // 1000 rows of weight 1
  for (size_t i = 1; i < scores.size(); i += 4) scores[i] = kUnscored;  // never, next to the others
  for (size_t i = 2; i < scores.size(); i += 4) scores[i] = -2.0;       // 1000 of weight 4
  const std::vector<float> rows = draw_rows(scores, {}, 7, 3);
  ASSERT_EQ(rows.size(), scores.size());
  std::map<size_t, int> counts;
  for (const float row : rows) ++counts[static_cast<size_t>(row) % 4];
  EXPECT_EQ(counts[1] + counts[3], 0);
  EXPECT_NEAR(counts[0], 800, 100);
  EXPECT_NEAR(counts[2], 3200, 100);
  EXPECT_EQ(rows, draw_rows(scores, {}, 7, 3));
  EXPECT_NE(rows, draw_rows(scores, {}, 7, 4));
  EXPECT_NE(rows, draw_rows(scores, {}, 8, 3));
}

}  // namespace
}  // namespace mortise
