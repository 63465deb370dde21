// The advantage estimators against verl's numbers, and what becomes of odd groups and rows without a reward.
#include "advantage_call.h"
#include "golden_case.h"
#include "support/close_to.h"

namespace mortise::test {
namespace {

std::vector<float> floats(const GoldenCase& c, const std::string& name) {
  if (!c.has(name)) return {};
  return {c.at(name).begin(), c.at(name).end()};
}

AdvantageCase batch_of(const GoldenCase& c) {
  AdvantageCase b;
  for (int64_t i = 1; i <= c.num_rows; ++i) b.row_offsets.push_back(i * c.width);
  b.group_index.resize(size_t(c.num_rows));
  std::iota(b.group_index.begin(), b.group_index.end(), 0);
  if (c.has("in.group_index")) b.group_index.assign(c.at("in.group_index").begin(), c.at("in.group_index").end());
  b.rewards = floats(c, "in.token_level_rewards");
  b.mask.assign(c.at("in.response_mask").begin(), c.at("in.response_mask").end());
  b.values = floats(c, "in.values");
  b.baselines = floats(c, "in.reward_baselines");
  b.old_log_prob = floats(c, "in.old_log_prob");
  b.sum_pi_squared = floats(c, "in.sum_pi_squared");
  b.is_weights = floats(c, "in.rollout_is_weights");
  return b;
}

class AdvantageGolden : public testing::TestWithParam<std::string> {};
INSTANTIATE_TEST_SUITE_P(AdvantageEstimator, AdvantageGolden,
                         testing::Values("gae", "gpg", "grpo", "grpo_passk", "grpo_vectorized", "opo",
                                         "optimal_token_baseline", "reinforce_plus_plus",
                                         "reinforce_plus_plus_baseline", "remax", "rloo", "rloo_vectorized",
                                         "tir_optimal_token_baseline"),
                         [](const auto& name) { return name.param; });

TEST_P(AdvantageGolden, MatchesVerl) {
  const auto cases = golden_cases("advantage_estimator", GetParam());
  ASSERT_EQ(cases.size(), 6U);
  for (const GoldenCase& c : cases) {
    SCOPED_TRACE(c.file);
    const AdvantageResult got = compute(GetParam(), c.params, batch_of(c));
    EXPECT_TRUE(all_close(got.advantages, c.at("expected.advantages"), 1e-5));
    EXPECT_TRUE(all_close(got.returns, c.at("expected.returns"), 1e-5));
  }
}

std::string name_of(const testing::TestParamInfo<std::string>& info) { return info.param; }

class AnyEstimator : public testing::TestWithParam<std::string> {};
INSTANTIATE_TEST_SUITE_P(AdvantageEstimator, AnyEstimator,
                         testing::Values("bnpo", "dr_grpo", "gae", "gdpo", "gpg", "grpo", "grpo_passk",
                                         "grpo_vectorized", "maxrl", "opo", "optimal_token_baseline",
                                         "reinforce_plus_plus", "reinforce_plus_plus_baseline", "remax", "rloo",
                                         "rloo_vectorized", "tir_optimal_token_baseline"),
                         name_of);

TEST_P(AnyEstimator, NoRowsAtAll) { EXPECT_TRUE(outcomes(GetParam(), {}, {}, {}).empty()); }

TEST_P(AnyEstimator, RowsWithoutTokensAndRowsAllMasked) {
  AdvantageCase b = random_case(3);
  b.mask.assign(b.mask.size(), 0);
  for (const float a : compute(GetParam(), {}, b).advantages) EXPECT_TRUE(std::isfinite(a));
  b = AdvantageCase{};
  b.group_index = {4, 4};
  b.row_offsets = {0, 0, 0};
  b.baselines = {1, 1};
  EXPECT_TRUE(compute(GetParam(), {}, b).advantages.empty());
}

// What compares rewards of the step or group: remax has a greedy completion instead, and the epsilon of the token
// baselines leaves 1e-8 of the reward.
class Comparing : public testing::TestWithParam<std::string> {};
INSTANTIATE_TEST_SUITE_P(AdvantageEstimator, Comparing,
                         testing::Values("bnpo", "dr_grpo", "gae", "gdpo", "gpg", "grpo", "grpo_passk",
                                         "grpo_vectorized", "maxrl", "opo", "reinforce_plus_plus",
                                         "reinforce_plus_plus_baseline", "rloo", "rloo_vectorized"),
                         name_of);

TEST_P(Comparing, EqualRewardsGiveExactlyZero) {
  for (const float r : {0.1F, 1e-8F, -3e5F, 0.0F}) {
    for (const float a : outcomes(GetParam(), {}, std::vector<float>(7, r))) EXPECT_EQ(a, 0.0F);
  }
}

// What compares rewards inside a group.
class GroupWise : public testing::TestWithParam<std::string> {};
INSTANTIATE_TEST_SUITE_P(AdvantageEstimator, GroupWise,
                         testing::Values("bnpo", "dr_grpo", "gdpo", "gpg", "grpo", "grpo_passk", "grpo_vectorized",
                                         "maxrl", "opo", "optimal_token_baseline", "reinforce_plus_plus_baseline",
                                         "rloo", "rloo_vectorized", "tir_optimal_token_baseline"),
                         name_of);

// If only one row of a larger group has a reward, it has nothing to compare with.
TEST_P(GroupWise, LoneRowOfALargerGroupHasNoAdvantage) {
  const auto a = outcomes(GetParam(), {}, {2, NAN, 1}, {1, 1, 1}, {1, 0, 0});
  EXPECT_EQ(a, (std::vector<float>{0, 0, 0}));
}

struct Single {
  const char* name;
  double by_default, of_reward, of_zero;  // for a reward of 3; NaN: no parameter `single`
};

TEST(Advantages, PromptSampledOnce) {
  const Single kSingles[] = {{"grpo", 3, 3, 0},
                             {"grpo_vectorized", 3, 3, 0},
                             {"dr_grpo", 3, 3, 0},
                             {"rloo", 3, 3, 0},
                             {"rloo_vectorized", 0, 3, 0},
                             {"opo", 3, 3, 0},
                             {"gpg", 3, 3, 0},
                             {"grpo_passk", 0, NAN, NAN},
                             {"maxrl", 0, NAN, NAN},
                             {"optimal_token_baseline", 3, NAN, NAN}};
  for (const Single& s : kSingles) {
    SCOPED_TRACE(s.name);
    const std::vector<float> rewards = {3};
    EXPECT_NEAR(outcomes(s.name, {}, rewards)[0], s.by_default, 1e-5);
    if (std::isnan(s.of_reward)) continue;
    EXPECT_NEAR(outcomes(s.name, {{"single", "reward"}}, rewards)[0], s.of_reward, 1e-5);
    EXPECT_NEAR(outcomes(s.name, {{"single", "zero"}}, rewards)[0], s.of_zero, 1e-5);
  }
}

// The numbers of TRL's documented example: a missing score is left out of mean and deviation.
TEST(Grpo, MissingScoreAsInTrl) {
  const auto a = outcomes("grpo", {{"epsilon", "1e-4"}}, {2, NAN, 0, 1});
  EXPECT_TRUE(all_close(a, std::vector<double>{0.9999, 0, -0.9999, 0}, 1e-6));
  const auto b = outcomes("grpo", {{"epsilon", "1e-4"}}, {1, 0, 0, 1});
  EXPECT_TRUE(all_close(b, std::vector<double>{0.865875, -0.865875, -0.865875, 0.865875}, 1e-6));
}

// The same example with scale_rewards = "batch".
TEST(Grpo, DeviationOfTheBatchAsInTrl) {
  const auto a = outcomes("grpo", {{"epsilon", "1e-4"}, {"std", "batch"}},
                          {1, 0, 0, 1, 0.5F, 0.5F, 0.5F, 0.5F, 2, NAN, 0, 1}, {0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 2, 2});
  EXPECT_TRUE(all_close(
      a, std::vector<double>{.839578, -.839578, -.839578, .839578, 0, 0, 0, 0, 1.679156, 0, -1.679156, 0}, 1e-6));
}

TEST(Grpo, InvalidRowIsLeftOutEvenWithANumber) {
  const auto a = outcomes("grpo", {{"norm_adv_by_std_in_grpo", "false"}}, {1, 100, 3}, {}, {1, 0, 1});
  EXPECT_EQ(a, (std::vector<float>{-1, 0, 1}));
}

TEST(Rloo, LeavesOneOut) {
  const auto a = outcomes("rloo", {}, {1, 2, 6});
  EXPECT_TRUE(all_close(a, std::vector<double>{-3, -1.5, 4.5}, 1e-6));
}

TEST(GrpoPassK, OnlyAClearLeadLearns) {
  const auto a = outcomes("grpo_passk", {{"norm_adv_by_std_in_grpo", "false"}}, {1, 5, 3, 2, 2, 0}, {0, 0, 0, 1, 1, 1});
  EXPECT_EQ(a, (std::vector<float>{0, 2, 0, 0, 0, 0}));
}

TEST(Grpo, GroupsMayBeInterleavedAndMaskedTokensStayZero) {
  AdvantageCase b;
  b.row_offsets = {0, 2, 4, 4, 6};
  b.group_index = {5, 9, 9, 5};
  b.rewards = {0, 1, 4, 0, 0, 3};  // the second row's reward is on a masked token
  b.mask = {1, 1, 0, 1, 1, 0};
  const AdvantageResult got = compute("grpo", {{"norm_adv_by_std_in_grpo", "false"}}, b);
  EXPECT_EQ(got.advantages, (std::vector<float>{-1, -1, 0, 2, 1, 0}));
}

}  // namespace
}  // namespace mortise::test
