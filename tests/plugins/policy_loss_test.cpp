// What holds for every policy loss, whatever its formula, in the shapes of real batches; and what vanilla and gspo
// promise beyond their published numbers.
#include <gtest/gtest.h>

#include <random>

#include "loss_call.h"
#include "support/close_to.h"
#include "support/this_build.h"

namespace mortise::test {
namespace {

// Rows of odd lengths, an empty one, one without active tokens, holes, and rubbish in masked places.
LossInput random_input(uint64_t seed, int rows, int longest) {
  std::mt19937_64 random(seed);
  std::normal_distribution<float> normal;
  LossInput in;
  for (int i = 0; i < rows; ++i) {
    const int n = i == 1 ? 0 : 1 + int(random() % uint64_t(longest));
    for (int t = 0; t < n; ++t) {
      const bool active = i != 2 && random() % 8 != 0;
      in.mask.push_back(active ? 1 : 0);
      in.old_log_prob.push_back(active ? -std::abs(normal(random)) : NAN);
      in.log_prob.push_back(active ? in.old_log_prob.back() + 0.3F * normal(random) : INFINITY);
      in.advantages.push_back(active ? normal(random) : -INFINITY);
      in.weight.push_back(active ? 0.1F + float(random() % 100) / 100.0F : NAN);
      in.rollout_log_prob.push_back(active ? in.old_log_prob.back() + 0.1F * normal(random) : NAN);
      in.rollout_is_weights.push_back(active ? 0.5F + float(random() % 100) / 100.0F : -INFINITY);
    }
    in.row_offsets.push_back(int64_t(in.mask.size()));
  }
  return in;
}

// Parameters that have no default.
std::map<std::string, std::string> needed(const std::string& name) {
  if (name == "dro") return {{"dro_beta", "0.3"}};
  return {};
}

std::vector<std::string> all_losses() {
  const mortise_pack* pack = load_pack(pack_path("policy_loss"));
  std::vector<std::string> names;
  for (uint32_t i = 0; i < pack->num_plugins; ++i) names.emplace_back(pack->plugins[i]->name);
  return names;
}

class EveryLoss : public testing::TestWithParam<std::string> {};
INSTANTIATE_TEST_SUITE_P(PolicyLoss, EveryLoss, testing::ValuesIn(all_losses()),
                         [](const auto& name) { return name.param; });

TEST_P(EveryLoss, MaskedPlacesAreZeroAndInert) {
  PolicyLoss plugin(policy_loss(GetParam()), needed(GetParam()));
  LossInput in = random_input(1, 12, 300);
  const LossOutput first = compute(plugin, in);
  const auto metrics = plugin.call.metrics;
  for (size_t i = 0; i < in.mask.size(); ++i) {
    if (in.mask[i] != 0) continue;
    EXPECT_EQ(first.loss[i], 0.0F);
    EXPECT_EQ(first.grad[i], 0.0F);
    in.log_prob[i] = in.old_log_prob[i] = in.advantages[i] = in.weight[i] = 1.0F;
    in.rollout_log_prob[i] = in.rollout_is_weights[i] = 1.0F;
  }
  const LossOutput second = compute(plugin, in);
  EXPECT_EQ(first.loss, second.loss);
  EXPECT_EQ(first.grad, second.grad);
  for (const auto& [name, m] : metrics) {
    EXPECT_EQ(m.sum, plugin.call.metrics.at(name).sum) << name;
    EXPECT_TRUE(std::isfinite(m.sum)) << name;
  }
}

TEST_P(EveryLoss, NothingIsNothing) {
  PolicyLoss plugin(policy_loss(GetParam()), needed(GetParam()));
  EXPECT_TRUE(compute(plugin, LossInput{}).loss.empty());
  LossInput in;
  in.row_offsets = {0, 0, 0};
  compute(plugin, in);
  EXPECT_EQ(plugin.call.metrics.count("actor/ppo_kl"), 0U) << "no token, no mean";
  in.mask = {0, 0}, in.row_offsets = {0, 2};
  in.log_prob = in.old_log_prob = in.advantages = in.weight = in.rollout_log_prob = {NAN, NAN};
  EXPECT_EQ(compute(plugin, in).loss, (std::vector<float>{0, 0}));
}

TEST_P(EveryLoss, SplittingTheBatchChangesNothing) {
  PolicyLoss plugin(policy_loss(GetParam()), needed(GetParam()));
  if (policy_loss(GetParam())->coupling == MORTISE_COUPLING_UPDATE) GTEST_SKIP() << "always gets the update whole";
  const LossInput all = random_input(2, 9, 200);
  const LossOutput whole = compute(plugin, all);
  const auto metrics = plugin.call.metrics;
  std::vector<float> loss, grad;
  std::map<std::string, mortise_call::Metric> joined;
  for (int64_t row = 0; row < all.num_rows(); ++row) {
    const auto b = all.row_offsets[size_t(row)], e = all.row_offsets[size_t(row) + 1];
    const auto cut = [&](const auto& v) { return std::decay_t<decltype(v)>(v.begin() + b, v.begin() + e); };
    LossInput one;
    one.row_offsets = {0, e - b};
    one.log_prob = cut(all.log_prob), one.old_log_prob = cut(all.old_log_prob), one.advantages = cut(all.advantages);
    one.weight = cut(all.weight), one.mask = cut(all.mask);
    one.rollout_log_prob = cut(all.rollout_log_prob), one.rollout_is_weights = cut(all.rollout_is_weights);
    const LossOutput part = compute(plugin, one);
    loss.insert(loss.end(), part.loss.begin(), part.loss.end());
    grad.insert(grad.end(), part.grad.begin(), part.grad.end());
    for (const auto& [name, m] : plugin.call.metrics) joined[name].sum += m.sum, joined[name].weight += m.weight;
  }
  EXPECT_EQ(loss, whole.loss);
  EXPECT_EQ(grad, whole.grad);
  for (const auto& [name, m] : metrics) {
    if (m.reduction == MORTISE_REDUCE_MEAN) {
      EXPECT_NEAR(joined.at(name).mean(), m.mean(), 1e-12) << name;
    }
  }
}

TEST_P(EveryLoss, ThreadsChangeNoBit) {
  PolicyLoss plugin(policy_loss(GetParam()), needed(GetParam()));
  const int rows = tests_cuda() ? 40 : test::kSanitized ? 160 : 400;  // several chunks on the host
  const LossInput in = random_input(3, rows, 900);
  const LossOutput one = compute(plugin, in);
  const auto metrics = plugin.call.metrics;
  plugin.call.threads = 3;
  const LossOutput three = compute(plugin, in);
  EXPECT_EQ(one.loss, three.loss);
  EXPECT_EQ(one.grad, three.grad);
  for (const auto& [name, m] : metrics) EXPECT_EQ(m.sum, plugin.call.metrics.at(name).sum) << name;
}

TEST_P(EveryLoss, ValueOnlyGivesTheSameLoss) {
  PolicyLoss plugin(policy_loss(GetParam()), needed(GetParam()));
  const LossInput in = random_input(4, 8, 100);
  EXPECT_EQ(compute(plugin, in, false).loss, compute(plugin, in).loss);
}

TEST_P(EveryLoss, ZeroWeightHasZeroGradientEvenWhereTheLossOverflows) {
  auto params = needed(GetParam());
  params["clip_ratio_high"] = "1e300";
  PolicyLoss plugin(policy_loss(GetParam()), params);
  LossInput in;
  in.row_offsets = {0, 1};
  in.log_prob = {3e38F}, in.old_log_prob = {-3e38F}, in.advantages = {1e38F}, in.weight = {0}, in.mask = {1};
  in.rollout_log_prob = {-3e38F};
  EXPECT_EQ(compute(plugin, in).grad[0], 0.0F);
}

TEST_P(EveryLoss, NaNComesThrough) {
  PolicyLoss plugin(policy_loss(GetParam()), needed(GetParam()));
  for (const float advantage : {-1.0F, 1.0F}) {
    LossInput in;
    in.row_offsets = {0, 1};
    in.log_prob = {NAN}, in.old_log_prob = {-1}, in.advantages = {advantage}, in.weight = {1}, in.mask = {1};
    in.rollout_log_prob = {-1};
    EXPECT_TRUE(std::isnan(compute(plugin, in).loss[0])) << "advantage " << advantage;
  }
}

// R40: very unlike policies give numbers.
TEST_P(EveryLoss, FiniteWhereThePoliciesAreFarApart) {
  PolicyLoss plugin(policy_loss(GetParam()), needed(GetParam()));
  for (const float distance : {50.0F, -90.0F, 800.0F, -1e4F, 1e4F}) {
    LossInput in = random_input(7, 12, 60);
    for (size_t i = 0; i < in.mask.size(); i += 3) {
      if (in.mask[i] == 0) continue;
      in.log_prob[i] = std::min(-0.01F, distance);
      in.old_log_prob[i] = in.rollout_log_prob[i] = in.log_prob[i] - distance;
    }
    const LossOutput out = compute(plugin, in);
    for (size_t i = 0; i < in.mask.size(); ++i) {
      ASSERT_TRUE(std::isfinite(out.loss[i]) && std::isfinite(out.grad[i])) << i << " at distance " << distance;
    }
  }
}

TEST_P(EveryLoss, WeightsScaleTheGradientAlone) {
  PolicyLoss plugin(policy_loss(GetParam()), needed(GetParam()));
  LossInput in = random_input(8, 12, 60);
  const LossOutput one = compute(plugin, in);
  for (float& w : in.weight) w *= 4;
  const LossOutput four = compute(plugin, in);
  EXPECT_EQ(one.loss, four.loss);
  for (size_t i = 0; i < in.mask.size(); ++i) EXPECT_FLOAT_EQ(four.grad[i], 4 * one.grad[i]);
}

TEST(Vanilla, GradientIsTheDifferenceQuotient) {
  PolicyLoss plugin(policy_loss("vanilla"), {{"clip_ratio_c", "1.5"}});
  LossInput in = random_input(5, 6, 40);
  const LossOutput at = compute(plugin, in);
  const float h = 1.0F / 1024;
  LossInput up = in, down = in;
  for (float& x : up.log_prob) x += h;
  for (float& x : down.log_prob) x -= h;
  const LossOutput above = compute(plugin, up), below = compute(plugin, down);
  int checked = 0;
  for (size_t i = 0; i < in.mask.size(); ++i) {
    if (in.mask[i] == 0) continue;
    // Away from the kinks only.
    const double r = std::exp(double(in.log_prob[i]) - double(in.old_log_prob[i]));
    if (std::abs(r - 0.8) < 0.01 || std::abs(r - 1.2) < 0.01 || std::abs(r - 1.5) < 0.01) continue;
    const double step = double(up.log_prob[i]) - double(down.log_prob[i]);
    const double slope = double(in.weight[i]) * (double(above.loss[i]) - double(below.loss[i])) / step;
    EXPECT_NEAR(at.grad[i], slope, 2e-3 * (1 + std::abs(slope))) << i;
    ++checked;
  }
  EXPECT_GT(checked, 50);
}

// If weights and advantages are equal within a row, gspo's token form is the true gradient of the row's loss.
TEST(Gspo, GradientIsTheDifferenceQuotientForEqualAdvantages) {
  PolicyLoss plugin(policy_loss("gspo"), {{"clip_ratio", "0.5"}});
  LossInput in;
  in.row_offsets = {0, 5};
  in.old_log_prob = {-1, -2, -0.5F, -1, -3};
  in.log_prob = {-1.1F, -1.9F, -0.4F, -1.2F, -2.8F};
  in.advantages.assign(5, -0.75F);
  in.weight.assign(5, 0.2F);
  in.mask = {1, 1, 0, 1, 1};
  const LossOutput at = compute(plugin, in);
  for (const size_t i : {0, 1, 3, 4}) {
    LossInput up = in, down = in;
    up.log_prob[i] += 0.0625F;
    down.log_prob[i] -= 0.0625F;
    EXPECT_NEAR(at.grad[i], (compute(plugin, up).total - compute(plugin, down).total) / 0.125, 1e-4);
  }
}

TEST(Vanilla, TrlMetricsCountSignedEdges) {
  PolicyLoss plugin(policy_loss("vanilla"),
                    {{"clip_ratio_low", "0.1"}, {"clip_ratio_high", "0.3"}, {"clip_ratio_c", "0"}});
  LossInput in;
  in.row_offsets = {0, 4, 6};
  in.old_log_prob.assign(6, 0);
  const std::vector<double> ratio = {0.5, 0.5, 1.5, 1.5, 1.5, 1.0};
  for (const double r : ratio) in.log_prob.push_back(float(std::log(r)));
  in.advantages = {-1, 1, 1, -1, 1, 1};
  in.weight.assign(6, 1);
  in.mask.assign(6, 1);
  compute(plugin, in);
  auto& m = plugin.call.metrics;
  EXPECT_DOUBLE_EQ(m.at("clip_ratio/low_mean").mean(), 1.0 / 6);
  EXPECT_DOUBLE_EQ(m.at("clip_ratio/high_mean").mean(), 2.0 / 6);
  EXPECT_DOUBLE_EQ(m.at("clip_ratio/region_mean").mean(), 3.0 / 6);
  EXPECT_DOUBLE_EQ(m.at("clip_ratio/low_min").sum, 0.0);
  EXPECT_DOUBLE_EQ(m.at("clip_ratio/high_max").sum, 0.5);
  EXPECT_NEAR(m.at("actor/ratio_min").sum, 0.5, 1e-7);
  EXPECT_NEAR(m.at("actor/ratio_max").sum, 1.5, 1e-7);
}

TEST(Vanilla, DualClipIsOffAtZeroAndNone) {
  LossInput in;
  in.row_offsets = {0, 1};
  in.log_prob = {std::log(8.0F)}, in.old_log_prob = {0}, in.advantages = {-1}, in.weight = {1}, in.mask = {1};
  PolicyLoss on(policy_loss("vanilla")), zero(policy_loss("vanilla"), {{"clip_ratio_c", "0"}});
  PolicyLoss unset(policy_loss("vanilla"), {{"clip_ratio_c", "none"}});
  EXPECT_FLOAT_EQ(compute(on, in).loss[0], 3.0F);
  EXPECT_FLOAT_EQ(compute(zero, in).loss[0], 8.0F);
  EXPECT_FLOAT_EQ(compute(unset, in).loss[0], 8.0F);
  PolicyLoss wrong(policy_loss("vanilla"), {{"clip_ratio_c", "0.5"}});
  EXPECT_EQ(wrong.status, MORTISE_INVALID_ARGUMENT);
  EXPECT_NE(wrong.call.error.find("clip_ratio_c"), std::string::npos);
}

// INTELLECT-2's cap, above the upper edge, is a dual clip of that height; nothing changes where A > 0.
TEST(Vanilla, DeltaIsTheDualClip) {
  PolicyLoss delta(policy_loss("vanilla"), {{"delta", "1.5"}, {"clip_ratio_c", "0"}});
  PolicyLoss dual(policy_loss("vanilla"), {{"clip_ratio_c", "1.5"}});
  const LossInput in = random_input(9, 12, 200);
  const LossOutput a = compute(delta, in), b = compute(dual, in);
  EXPECT_EQ(a.loss, b.loss);
  EXPECT_EQ(a.grad, b.grad);
}

// Squares of 0 and three of 1/16: with one of those the mean is 1/32, with two 1/24, above 0.04. The rows' names decide
// which one stays, not their order.
TEST(M2po, OfEqualTokensAsManyStayAsTheThresholdAllows) {
  PolicyLoss plugin(policy_loss("m2po")), clippable(policy_loss("m2po"), {{"m2_clippable_only", "true"}});
  LossInput in;
  in.row_offsets = {0, 1, 2, 3, 4};
  in.row_id = {3, 1, 2, 0};
  in.old_log_prob.assign(4, -1), in.advantages.assign(4, 1), in.weight.assign(4, 1), in.mask.assign(4, 1);
  in.log_prob = {-0.75F, -0.75F, -1, -0.75F};
  EXPECT_EQ(compute(plugin, in).loss, (std::vector<float>{0, 0, -1, -std::exp(0.25F)}));
  EXPECT_DOUBLE_EQ(plugin.call.metrics.at("actor/pg_clipfrac").mean(), 0.5);
  // Among the tokens that could be clipped, none is below the threshold.
  EXPECT_EQ(compute(clippable, in).loss, (std::vector<float>{0, 0, -1, 0}));
  in.log_prob.assign(4, -2);  // all equal and far: one remains
  EXPECT_EQ(compute(plugin, in).loss, (std::vector<float>{0, 0, 0, -std::exp(-1.0F)}));
}

// W = 2 in the first row: phi is e^3 2^2 e^-6 = 4 e^-3 where A >= 0, and e^2 2^3 e^-4 = 8 e^-2 elsewhere. It has one token
// with A >= 0 and two others. W = 1 in the second row, so phi is 1.
TEST(Vespo, PhiOfARowIsTheMeanOfItsTokens) {
  PolicyLoss plugin(policy_loss("vespo"));
  LossInput in;
  in.row_offsets = {0, 4, 5};
  in.old_log_prob = {-std::log(2.0F), -1, -1, -1, -1}, in.log_prob = {0, -1, -1, 5, -1};
  in.advantages = {1, -1, -2, -1, 3}, in.weight.assign(5, 1), in.mask = {1, 1, 1, 0, 1};
  const double positive = 4 * std::exp(-3.0), negative = 8 * std::exp(-2.0);
  const LossOutput out = compute(plugin, in);
  EXPECT_NEAR(plugin.call.metrics.at("vespo/phi_seq_mean").mean(), ((positive + 2 * negative) / 3 + 1) / 2, 1e-6);
  EXPECT_NEAR(plugin.call.metrics.at("vespo/phi_seq_mean").mean(), 0.8940855, 1e-6);
  const std::vector<double> gradient = {-positive, negative, 2 * negative, 0, -3};
  for (size_t t = 0; t < gradient.size(); ++t) EXPECT_NEAR(out.grad[t], gradient[t], 1e-6) << t;
}

TEST(ClipCov, RefusesAnEmptyBand) {
  const PolicyLoss wrong(policy_loss("clip_cov"), {{"clip_cov_lb", "5"}});
  EXPECT_EQ(wrong.status, MORTISE_INVALID_ARGUMENT);
  EXPECT_NE(wrong.call.error.find("clip_cov_ub"), std::string::npos);
}

TEST(Cispo, TellsEdgesThatTheCapReplaces) {
  EXPECT_TRUE(PolicyLoss(policy_loss("cispo"), {{"cap", "5"}}).call.log.empty());
  EXPECT_TRUE(PolicyLoss(policy_loss("cispo"), {{"clip_ratio_low", "0.3"}}).call.log.empty());
  const PolicyLoss both(policy_loss("cispo"), {{"cap", "5"}, {"clip_ratio_low", "0.3"}});
  ASSERT_EQ(both.call.log.size(), 1U);
  EXPECT_NE(both.call.log[0].find("clip_ratio_low"), std::string::npos);
}

// Group losses identify groups by their number, wherever their rows are.
TEST(Real, RowsOfAGroupNeedNotBeNeighbours) {
  PolicyLoss plugin(policy_loss("real"));
  LossInput in;
  in.row_offsets = {0, 1, 2, 3, 4};
  in.group_index = {7, -3, 7, -3};
  in.log_prob = {-1, -1.5F, -2, -1}, in.old_log_prob = {-1.2F, -1, -1.9F, -1};
  in.advantages = {1, 1, -1, 2}, in.weight.assign(4, 1), in.mask.assign(4, 1);
  const LossOutput out = compute(plugin, in);
  const double tau = 0.5, expected = std::log1p(std::exp(-0.1 / tau)) + std::log1p(std::exp(-0.2 / tau));
  EXPECT_NEAR(out.loss[0], expected, 1e-6);
  EXPECT_EQ(out.loss[0], out.loss[2]);
  EXPECT_EQ(out.loss[1], 0.0F) << "a group of positives alone";
  EXPECT_EQ(out.grad[3], 0.0F);
  EXPECT_DOUBLE_EQ(plugin.call.metrics.at("real/complete_groups").mean(), 0.5);
}

TEST(Gspo, RowMetricsCountRows) {
  PolicyLoss plugin(policy_loss("gspo"), {{"clip_ratio_low", "0.1"}, {"clip_ratio_high", "0.1"}});
  LossInput in;
  in.row_offsets = {0, 3, 4, 4, 5};  // the third row is empty
  in.old_log_prob.assign(5, 0);
  in.log_prob = {-0.5F, -0.5F, -0.5F, 0.5F, 0.0F};
  in.advantages = {-1, -1, -1, 1, 1};
  in.weight.assign(5, 1);
  in.mask.assign(5, 1);
  compute(plugin, in);
  auto& m = plugin.call.metrics;
  EXPECT_DOUBLE_EQ(m.at("clip_ratio/low_mean").sum, 1.0);
  EXPECT_DOUBLE_EQ(m.at("clip_ratio/low_mean").weight, 4.0);
  EXPECT_DOUBLE_EQ(m.at("clip_ratio/high_mean").mean(), 0.25);
  EXPECT_DOUBLE_EQ(m.at("actor/pg_clipfrac").mean(), 0.8) << "verl's share is of tokens";
}

}  // namespace
}  // namespace mortise::test
