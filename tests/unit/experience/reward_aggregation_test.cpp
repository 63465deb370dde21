// normalize_then_sum: the published formula by hand, and what does not apply.
#include "experience/advantage/reward_aggregation.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

namespace mortise {
namespace {

constexpr double kNoReward = std::numeric_limits<double>::quiet_NaN();

RewardColumn column(double weight, std::vector<double> values) {
  RewardColumn out;
  out.weight = weight;
  out.values = std::move(values);
  return out;
}

const std::vector<int64_t> kGroups = {5, 5, 5, 2, 2, 2};
const std::vector<uint8_t> kAll(6, 1);

TEST(NormalizeThenSum, BringsEveryRewardToOneScaleInItsGroup) {
  // Group 5: mean 2, deviation (n - 1) 1; group 2: equal rewards. The second reward is the first times a thousand.
  const std::vector<double> sum = normalize_then_sum(
      {column(1.0, {1, 2, 3, 0.1, 0.1, 0.1}), column(0.5, {1000, 2000, 3000, 8, 9, 10})}, kGroups, kAll);
  const double first = 1.0 / 1.0001, second = 0.5 * 1000.0 / 1000.0001, third = 0.5 / 1.0001;
  const std::vector<double> expected = {-first - second, 0, first + second, -third, 0, third};
  for (size_t i = 0; i < expected.size(); ++i) EXPECT_NEAR(sum[i], expected[i], 1e-12) << i;
}

TEST(NormalizeThenSum, LeavesOutWhatDoesNotApply) {
  const std::vector<double> rewards = {1, kNoReward, 3, kNoReward, 7, kNoReward};
  std::vector<double> sum = normalize_then_sum({column(1.0, rewards)}, kGroups, kAll);
  const double z = 1.0 / (std::sqrt(2.0) + 1e-4);
  EXPECT_NEAR(sum[0], -z, 1e-12);
  EXPECT_EQ(sum[1], 0.0);
  EXPECT_NEAR(sum[2], z, 1e-12);
  EXPECT_EQ(sum[4], 0.0);  // nothing to compare with
  sum = normalize_then_sum({column(1.0, {1, 5, 3, 1, 2, 3})}, kGroups, std::vector<uint8_t>{1, 0, 1, 1, 1, 1});
  EXPECT_NEAR(sum[0], -z, 1e-12);  // a row that counts for nothing is in no mean
  EXPECT_EQ(sum[1], 0.0);
}

TEST(NormalizeThenSum, DependsNeitherOnOrderNorOnShifts) {
  const std::vector<double> a = normalize_then_sum({column(2.0, {1, 2, 4, 0, 1, 5})}, kGroups, kAll);
  const std::vector<double> b =
      normalize_then_sum({column(2.0, {5 + 1e6, 4, 1 + 1e6, 2, 1e6, 1})}, std::vector<int64_t>{2, 5, 2, 5, 2, 5}, kAll);
  const size_t place[] = {5, 3, 1, 4, 2, 0};
  for (size_t i = 0; i < a.size(); ++i) EXPECT_NEAR(a[i], b[place[i]], 1e-9) << i;
}

}  // namespace
}  // namespace mortise
