// bnpo: its density and fit against an oracle, its identities, and its state.
#include <cstring>

#include "advantage_call.h"
#include "mortise/ext/state.h"
#include "support/close_to.h"

namespace mortise::test {
namespace {

using Doubles = std::vector<double>;

// Beta(alpha, beta) by its definition: the integral by Simpson's rule, no gamma function.
double density(double p, double alpha, double beta) {
  const auto kernel = [&](double x) { return std::pow(x, alpha - 1) * std::pow(1 - x, beta - 1); };
  constexpr int kSteps = 200000;
  double integral = kernel(0) + kernel(1);
  for (int i = 1; i < kSteps; ++i) integral += (i % 2 == 0 ? 2 : 4) * kernel(double(i) / kSteps);
  return kernel(p) / (integral / (3.0 * kSteps));
}

// 1 + a/3, 1 + b/3 from all means at once.
std::pair<double, double> fitted(const Doubles& means) {
  double sum = 0, square = 0;
  for (const double m : means) sum += m;
  const double e = sum / double(means.size());
  for (const double m : means) square += (m - e) * (m - e);
  const double nu = e * (1 - e) / (square / double(means.size() - 1)) - 1;
  return {std::max(1.0, 1 + nu * e / 3), std::max(1.0, 1 + nu * (1 - e) / 3)};
}

// Groups of four with the given numbers of successes.
AdvantageCase groups_with(const std::vector<int>& successes) {
  std::vector<float> rewards;
  std::vector<int64_t> groups;
  for (size_t g = 0; g < successes.size(); ++g) {
    for (int i = 0; i < 4; ++i) rewards.push_back(i < successes[g] ? 1.0F : 0.0F), groups.push_back(int64_t(g));
  }
  return outcome_case(rewards, groups);
}

Doubles expected(const std::vector<int>& successes, double alpha, double beta) {
  Doubles out;
  for (const int k : successes) {
    const double p = k / 4.0;
    for (int i = 0; i < 4; ++i) out.push_back(k == 0 || k == 4 ? 0.0 : ((i < k) - p) / density(p, alpha, beta));
  }
  return out;
}

TEST(Bnpo, FitsTheStepsGroups) {
  const std::vector<int> successes = {1, 2, 2, 3, 3, 1, 4, 2};
  const auto [alpha, beta] = fitted({.25, .5, .5, .75, .75, .25, 1, .5});
  ASSERT_GT(alpha, 1.2);
  ASSERT_GT(beta, 1.2);
  Estimator plugin(estimator("bnpo"));
  const auto got = compute(plugin, groups_with(successes));
  EXPECT_TRUE(all_close(got.advantages, expected(successes, alpha, beta), 1e-5));
  EXPECT_TRUE(all_close(got.returns, got.advantages, 0));
  EXPECT_NEAR(plugin.call.metrics.at("bnpo/alpha").mean(), alpha, 1e-9);
  EXPECT_NEAR(plugin.call.metrics.at("bnpo/beta").mean(), beta, 1e-9);
}

TEST(Bnpo, WindowRemembersEarlierSteps) {
  Estimator plugin(estimator("bnpo"), {{"window", "2"}});
  compute(plugin, groups_with({0, 4, 0, 4}));  // forgotten at the third step
  compute(plugin, groups_with({1, 2, 3}));
  const auto third = compute(plugin, groups_with({2, 3, 2, 1}));
  const auto [alpha, beta] = fitted({.25, .5, .75, .5, .75, .5, .25});
  EXPECT_TRUE(all_close(third.advantages, expected({2, 3, 2, 1}, alpha, beta), 1e-5));
}

TEST(Bnpo, NothingToFitIsReinforceWithBaseline) {
  for (const auto& successes : {std::vector<int>{2}, std::vector<int>{1, 1, 1}, std::vector<int>{0, 4, 0, 4, 0, 3}}) {
    const AdvantageCase b = groups_with(successes);
    EXPECT_TRUE(all_close(compute("bnpo", {}, b).advantages, compute("dr_grpo", {}, b).advantages, 1e-6));
  }
}

TEST(Bnpo, RewardsOfAnotherRange) {
  const AdvantageCase zero_one = groups_with({1, 2, 3, 2});
  AdvantageCase b = zero_one;
  for (float& r : b.rewards) r = 3 * r - 1;
  const auto mapped = compute("bnpo", {{"reward_min", "-1.0"}, {"reward_max", "2.0"}}, b).advantages;
  EXPECT_TRUE(all_close(mapped, compute("bnpo", {}, zero_one).advantages, 1e-6));
  Estimator plugin(estimator("bnpo"));
  EXPECT_TRUE(all_close(compute(plugin, b).advantages, mapped, 1e-6));  // -1 and 2 are cut to 0 and 1
  EXPECT_EQ(plugin.call.metrics.at("bnpo/clipped_rewards").mean(), 1.0);
  compute(plugin, b);  // said once
  ASSERT_EQ(plugin.call.log.size(), 1U);
  EXPECT_NE(plugin.call.log[0].find("reward_min"), std::string::npos);
  EXPECT_NE(Estimator(estimator("bnpo"), {{"reward_min", "1.0"}}).status, 0);
  EXPECT_NE(Estimator(estimator("bnpo"), {{"reward_max", "inf"}}).status, 0);
  EXPECT_NE(Estimator(estimator("bnpo"), {{"alpha", "2.0"}}).status, 0);
  // The other method's parameters would go without effect.
  const Estimator mixed(estimator("bnpo"), {{"method", "posterior"}, {"alpha", "2.0"}, {"beta", "2.0"}});
  EXPECT_NE(mixed.status, 0);
  EXPECT_NE(mixed.call.error.find("prior_alpha"), std::string::npos);
}

// Each function has its own fit; then the weighted mean.
TEST(Bnpo, DecomposesTheAdvantage) {
  const AdvantageCase first = groups_with({1, 2, 3, 2}), second = groups_with({4, 1, 1, 2});
  AdvantageCase both = first;
  both.weights = {1, 3};
  for (size_t i = 0; i < first.num_rows(); ++i) {
    both.columns.push_back(first.rewards[i]);
    both.columns.push_back(second.rewards[i]);
  }
  const auto a = compute("bnpo", {}, first).advantages, c = compute("bnpo", {}, second).advantages;
  Doubles mixed;
  for (size_t i = 0; i < a.size(); ++i) mixed.push_back((double(a[i]) + 3 * double(c[i])) / 4);
  EXPECT_TRUE(all_close(compute("bnpo", {{"decompose", "true"}}, both).advantages, mixed, 1e-5));
}

TEST(Bnpo, PosteriorFollowsAllRewards) {
  Estimator plugin(estimator("bnpo"),
                   {{"method", "posterior"}, {"delta", "0.01"}, {"prior_alpha", "2.0"}, {"decay", "0.5"}});
  compute(plugin, outcome_case({1, 1, 0, 1}));  // 3 successes, 1 failure, halved at the next step
  const auto got = compute(plugin, outcome_case({0, 0, 1}));
  const double m = (2 + 1.5 + 1) / (2 + 1.5 + 1 + 1 + 0.5 + 2), s = std::sqrt(m * (1 - m) + 0.01);
  EXPECT_TRUE(all_close(got.advantages, Doubles{-m / s, -m / s, (1 - m) / s}, 1e-6));
}

std::string saved(Estimator& plugin) {
  const auto* state = static_cast<const mortise_state*>(plugin.vtable->get_extension(plugin.self, MORTISE_EXT_STATE));
  std::string bytes;
  const mortise_state_sink sink{sizeof sink, 0, &bytes, [](void* context, mortise_bytes more) noexcept {
                                  static_cast<std::string*>(context)->append(static_cast<const char*>(more.data),
                                                                             more.size);
                                }};
  if (state->save(plugin.self, &plugin.call, &sink) != 0) throw std::runtime_error(plugin.call.error);
  return bytes;
}
int32_t load(Estimator& plugin, const std::string& bytes) {
  const auto* state = static_cast<const mortise_state*>(plugin.vtable->get_extension(plugin.self, MORTISE_EXT_STATE));
  return state->load(plugin.self, &plugin.call, {bytes.data(), bytes.size()});
}

class BnpoState : public testing::TestWithParam<std::string> {};
INSTANTIATE_TEST_SUITE_P(Methods, BnpoState, testing::Values("density", "posterior"));

TEST_P(BnpoState, GoesOnAfterAResume) {
  const Params params = {{"method", GetParam()}, {"window", "3"}};
  Estimator run(estimator("bnpo"), params), resumed(estimator("bnpo"), params), fresh(estimator("bnpo"), params);
  compute(run, groups_with({1, 2, 3, 3}));
  compute(run, groups_with({1, 1, 2, 2}));
  ASSERT_EQ(load(resumed, saved(run)), 0) << resumed.call.error;
  EXPECT_EQ(saved(resumed), saved(run));
  for (const auto& next : {std::vector<int>{2, 3, 1, 4}, std::vector<int>{0, 1, 3, 2}}) {
    const auto a = compute(run, groups_with(next)).advantages;
    EXPECT_EQ(a, compute(resumed, groups_with(next)).advantages);
    EXPECT_NE(a, compute(fresh, groups_with(next)).advantages);
  }
}

TEST(Bnpo, RefusesDamagedState) {
  Estimator run(estimator("bnpo"));
  compute(run, groups_with({1, 2, 3, 3}));
  const std::string good = saved(run);
  std::vector<std::string> damaged = {"", "bnpo1", good + "x", good.substr(0, good.size() - 1),
                                      std::string(40, '\xFF')};
  for (size_t i = 0; i < good.size(); ++i) {
    damaged.push_back(good);
    damaged.back()[i] = char(damaged.back()[i] ^ 0x10);
  }
  for (const std::string& bytes : damaged) {
    Estimator plugin(estimator("bnpo"));
    EXPECT_EQ(load(plugin, bytes), MORTISE_DATA_LOSS);
    EXPECT_NE(plugin.call.error.find("bnpo"), std::string::npos);
  }
}

}  // namespace
}  // namespace mortise::test
