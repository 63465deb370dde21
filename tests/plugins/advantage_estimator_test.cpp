// grpo and rloo against verl's numbers, and rows without a reward.
#include <gtest/gtest.h>

#include "golden_case.h"
#include "loss_call.h"
#include "support/close_to.h"

namespace mortise::test {
namespace {

using Estimator = Instance<mortise_advantage_estimator_vtable>;

const mortise_descriptor* estimator(const std::string& name) {
  return find_plugin(load_pack(pack_path("advantage_estimator")), MORTISE_KIND_ADVANTAGE_ESTIMATOR, name);
}

struct Batch {
  std::vector<int64_t> row_offsets{0}, group_index;
  std::vector<float> rewards;
  std::vector<uint8_t> mask, valid;
};

struct Result {
  std::vector<float> advantages, returns;
};

Result compute(Estimator& plugin, const Batch& b) {
  const auto rows = int64_t(b.group_index.size());
  std::vector<int64_t> id(size_t(rows), 0);
  const mortise_layout layout{sizeof layout,       0, rows, b.row_offsets.back(), b.row_offsets.data(), id.data(),
                              b.group_index.data()};
  const FlatTensor<float> rewards(b.rewards);
  const FlatTensor<uint8_t> mask(b.mask), valid(b.valid);
  FlatTensor<float> advantages(std::vector<float>(b.mask.size())), returns(std::vector<float>(b.mask.size()));
  mortise_advantage_estimator_in in{};
  in.struct_size = sizeof in;
  in.layout = &layout;
  in.token_level_rewards = rewards.view();
  in.response_mask = mask.view();
  in.row_valid = b.valid.empty() ? nullptr : valid.view();
  mortise_advantage_estimator_out out{};
  out.struct_size = sizeof out;
  out.advantages = advantages.view();
  out.returns = returns.view();
  if (plugin.vtable->compute(plugin.self, &plugin.call, &in, &out) != 0) throw std::runtime_error(plugin.call.error);
  return {advantages.values(), returns.values()};
}

// One token a row: the outcome itself.
std::vector<float> outcomes(const std::string& name, std::map<std::string, std::string> params,
                            const std::vector<float>& rewards, std::vector<int64_t> groups = {},
                            std::vector<uint8_t> valid = {}) {
  Estimator plugin(estimator(name), std::move(params));
  Batch b;
  b.group_index = groups.empty() ? std::vector<int64_t>(rewards.size(), 7) : std::move(groups);
  b.rewards = rewards;
  b.mask.assign(rewards.size(), 1);
  b.valid = std::move(valid);
  for (size_t i = 1; i <= rewards.size(); ++i) b.row_offsets.push_back(int64_t(i));
  return compute(plugin, b).advantages;
}

class AdvantageGolden : public testing::TestWithParam<std::string> {};
INSTANTIATE_TEST_SUITE_P(AdvantageEstimator, AdvantageGolden, testing::Values("grpo", "rloo"));

TEST_P(AdvantageGolden, MatchesVerl) {
  const auto cases = golden_cases("advantage_estimator", GetParam());
  ASSERT_EQ(cases.size(), 6U);
  for (const GoldenCase& c : cases) {
    SCOPED_TRACE(c.file);
    Estimator plugin(estimator(GetParam()), c.params);
    Batch b;
    for (int64_t i = 1; i <= c.num_rows; ++i) b.row_offsets.push_back(i * c.width);
    for (const double g : c.at("in.group_index")) b.group_index.push_back(int64_t(g));
    b.rewards.assign(c.at("in.token_level_rewards").begin(), c.at("in.token_level_rewards").end());
    b.mask.assign(c.at("in.response_mask").begin(), c.at("in.response_mask").end());
    const Result got = compute(plugin, b);
    EXPECT_TRUE(all_close(got.advantages, c.at("expected.advantages"), 1e-5));
    EXPECT_TRUE(all_close(got.returns, c.at("expected.returns"), 1e-5));
  }
}

TEST_P(AdvantageGolden, EqualRewardsGiveExactlyZero) {
  for (const float r : {0.1F, 1e-8F, -3e5F, 0.0F}) {
    for (const float a : outcomes(GetParam(), {}, std::vector<float>(7, r))) EXPECT_EQ(a, 0.0F);
  }
}

TEST_P(AdvantageGolden, NoRowsAtAll) { EXPECT_TRUE(outcomes(GetParam(), {}, {}, {}).empty()); }

TEST_P(AdvantageGolden, LoneRowOfALargerGroupIsZeroButAPromptSampledOnceIsNot) {
  const auto a = outcomes(GetParam(), {}, {2, NAN, 1, 3}, {1, 1, 2, 3}, {1, 0, 1, 1});
  EXPECT_EQ(a[0], 0.0F);
  EXPECT_EQ(a[1], 0.0F);
  EXPECT_NEAR(a[2], 1.0, 1e-5);
  EXPECT_NEAR(a[3], 3.0, 1e-5);
}

// The numbers of TRL's documented example: a missing score is left out of mean and deviation.
TEST(Grpo, MissingScoreAsInTrl) {
  const auto a = outcomes("grpo", {{"epsilon", "1e-4"}}, {2, NAN, 0, 1});
  EXPECT_TRUE(all_close(a, std::vector<double>{0.9999, 0, -0.9999, 0}, 1e-6));
  const auto b = outcomes("grpo", {{"epsilon", "1e-4"}}, {1, 0, 0, 1});
  EXPECT_TRUE(all_close(b, std::vector<double>{0.865875, -0.865875, -0.865875, 0.865875}, 1e-6));
}

TEST(Grpo, InvalidRowIsLeftOutEvenWithANumber) {
  const auto a = outcomes("grpo", {{"norm_adv_by_std_in_grpo", "false"}}, {1, 100, 3}, {}, {1, 0, 1});
  EXPECT_EQ(a, (std::vector<float>{-1, 0, 1}));
}

TEST(Rloo, LeavesOneOut) {
  const auto a = outcomes("rloo", {}, {1, 2, 6});
  EXPECT_TRUE(all_close(a, std::vector<double>{-3, -1.5, 4.5}, 1e-6));
}

TEST(Grpo, GroupsMayBeInterleavedAndMaskedTokensStayZero) {
  Estimator plugin(estimator("grpo"), {{"norm_adv_by_std_in_grpo", "false"}});
  Batch b;
  b.row_offsets = {0, 2, 4, 4, 6};
  b.group_index = {5, 9, 9, 5};
  b.rewards = {0, 1, 4, 0, 0, 3};  // the second row's reward stands on a masked token
  b.mask = {1, 1, 0, 1, 1, 0};
  const Result got = compute(plugin, b);
  EXPECT_EQ(got.advantages, (std::vector<float>{-1, -1, 0, 2, 1, 0}));
}

}  // namespace
}  // namespace mortise::test
