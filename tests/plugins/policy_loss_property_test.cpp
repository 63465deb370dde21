// Identities between losses on random batches; those that hold for any clip are in loss_rapidcheck_test.cpp.
#include <gtest/gtest.h>

#include <random>

#include "loss_call.h"
#include "support/close_to.h"

namespace mortise::test {
namespace {

LossInput random_batch(uint64_t seed, int rows, int shortest, int longest) {
  std::mt19937_64 random(seed);
  std::normal_distribution<float> normal;
  LossInput in;
  for (int i = 0; i < rows; ++i) {
    const float adv = normal(random);
    const int n = shortest + int(random() % uint64_t(longest - shortest + 1));
    for (int t = 0; t < n; ++t) {
      in.mask.push_back(shortest == longest || random() % 8 != 0);
      in.old_log_prob.push_back(-0.05F - std::abs(normal(random)));
      in.log_prob.push_back(std::min(-0.01F, in.old_log_prob.back() + 0.3F * normal(random)));
      in.rollout_log_prob.push_back(in.old_log_prob.back() + 0.1F * normal(random));
      in.advantages.push_back(adv);
      in.weight.push_back(0.1F + float(random() % 100) / 100.0F);
    }
    in.row_offsets.push_back(int64_t(in.mask.size()));
    in.group_index.push_back(i / 3);
  }
  return in;
}

using Params = std::map<std::string, std::string>;
LossOutput run(const std::string& loss, const Params& params, const LossInput& in) {
  PolicyLoss plugin(policy_loss(loss), params);
  EXPECT_EQ(plugin.status, 0) << plugin.call.error;
  return compute(plugin, in);
}

void expect_same(const LossOutput& a, const LossOutput& b, double tolerance = 1e-6) {
  EXPECT_TRUE(all_close(a.loss, b.loss, tolerance));
  EXPECT_TRUE(all_close(a.grad, b.grad, tolerance));
}

const Params kNoClip = {{"clip_ratio", "1e300"}, {"clip_ratio_low", "1"}, {"clip_ratio_c", "0"}};

TEST(Identity, OnPolicyGradientsAreReinforces) {
  LossInput in = random_batch(4, 30, 1, 40);
  in.old_log_prob = in.rollout_log_prob = in.log_prob;
  const LossOutput reinforce = run("reinforce", {}, in);
  for (const char* loss : {"vanilla", "gspo", "gspo_token", "sapo", "cispo", "gpg", "dppo_tv", "dppo_kl", "vespo",
                           "fipo", "topr", "aipo", "m2po", "decoupled"}) {
    SCOPED_TRACE(loss);
    EXPECT_TRUE(all_close(run(loss, {}, in).grad, reinforce.grad, 1e-6));
  }
  EXPECT_TRUE(all_close(run("dro", {{"dro_beta", "0.5"}}, in).grad, reinforce.grad, 1e-6));
}

TEST(Identity, LossesWithTheirOwnPartSwitchedOff) {
  LossInput in = random_batch(5, 30, 0, 40);
  const LossOutput ppo = run("vanilla", {{"clip_ratio_c", "0"}}, in), open = run("vanilla", kNoClip, in);
  expect_same(run("fipo", {{"fipo_clip_range", "0"}, {"fipo_safety_threshold", "none"}}, in), ppo);
  expect_same(run("clip_cov", {{"clip_cov_lb", "1e9"}, {"clip_cov_ub", "2e9"}}, in), ppo);
  expect_same(run("kl_cov", {{"ppo_kl_coef", "0"}}, in), open);
  expect_same(run("m2po", {{"m2_threshold", "1e9"}}, in), open);
  expect_same(run("m2po", {{"m2_threshold", "1e9"}, {"ppo_clip", "0.2"}}, in), ppo);
  const LossOutput free = run("cispo", {{"cap", "1e300"}}, in);
  for (const char* loss : {"dppo_tv", "dppo_kl"}) {
    expect_same(run(loss, {{"clip_ratio", "1e300"}, {"clip_ratio_c", "1e300"}}, in), free);
    expect_same(run(loss, {{"clip_ratio", "1e300"}, {"clip_ratio_c", "0"}}, in), free);  // 0: no cap
  }
  in.rollout_log_prob = in.old_log_prob;
  expect_same(run("decoupled", {}, in), ppo);
  expect_same(run("aipo", {{"rho", "1.1"}}, in), run("cispo", {{"cap", "1.1"}}, in));
}

TEST(Identity, ToprIsReinforceWhereTheAdvantageIsPositive) {
  LossInput in = random_batch(6, 30, 1, 40);
  for (float& a : in.advantages) a = std::abs(a);
  expect_same(run("topr", {}, in), run("reinforce", {}, in));
}

// Rows with one advantage and one weight: the token form of GSPO and the true derivative agree, and GMPO without an
// edge is GSPO without an edge.
TEST(Identity, FormsOfTheSequenceRatioAgreeForEvenRows) {
  LossInput in = random_batch(7, 30, 2, 40);
  in.mask.assign(in.mask.size(), 1);
  for (int64_t row = 0; row < in.num_rows(); ++row) {
    for (auto t = size_t(in.row_offsets[size_t(row)]); t < size_t(in.row_offsets[size_t(row) + 1]); ++t)
      in.weight[t] = 0.1F + 0.01F * float(row);
  }
  expect_same(run("gspo", {{"gradient", "row"}}, in), run("gspo", {}, in), 1e-5);
  const Params open = {{"clip_ratio", "1e300"}, {"clip_ratio_low", "1e300"}};
  expect_same(run("geo_mean", open, in), run("gspo", open, in), 1e-5);
}

}  // namespace
}  // namespace mortise::test
