// Updates of the policy: the KL estimators in the loss for every cut (split_invariance_test has all losses), rows
// without advantage, log-probs that are not finite, the pass that is saved, and what the engine's stages scale.
#include "learn/update/actor_learner.h"

#include <gmock/gmock.h>

#include <cmath>

#include "learn/objective/entropy_mask.h"
#include "learn/objective/off_policy_mask.h"
#include "learner_fixture.h"

namespace mortise {
namespace {

TEST(ActorLearner, EveryCutGivesTheSameGradientWithKlAndEntropyInTheLoss) {
  for (const std::string kl : {"k1", "k2", "low_var_kl", "k3_ratio", "k3_row_ratio", "abs", "k3+"}) {
    TestObjective run(
        {"actor.use_kl_loss=true", "actor.kl_loss_coef=0.3", "actor.kl_loss_type=" + kl, "actor.entropy_coeff=0.05"});
    TestPolicy policy("float32");
    const RandomRows data(/*on_policy=*/false);
    UpdateReport whole_report, part_report;
    const auto whole = policy.gradients(run.objective, data.batch, cut_by(kAll), &whole_report);
    for (const MicroBatchOptions cut : {MicroBatchOptions{1, 0}, {2, 0}, {5, 0}, {0, 12}, {0, 25}, {0, 4096}}) {
      const auto parts = policy.gradients(run.objective, data.batch, cut_by(cut), &part_report);
      EXPECT_LE(worst_relative_l2(parts, whole), 1e-5) << kl << " rows " << cut.rows << " tokens " << cut.token_budget;
      EXPECT_NEAR(part_report.sums.loss, whole_report.sums.loss, 1e-6 * (1.0 + std::abs(whole_report.sums.loss)));
      EXPECT_NEAR(part_report.sums.kl, whole_report.sums.kl, 1e-5 * std::abs(whole_report.sums.kl));
      EXPECT_EQ(part_report.sums.num_tokens, whole_report.sums.num_tokens);
    }
  }
}

// Clipped is a token whose policy term has no gradient, by PPO's formula; that the KL has one does not matter.
TEST(ActorLearner, TellsWhatItSawOfEachToken) {
  TestObjective run({"actor.policy_loss.loss_mode=vanilla", "actor.use_kl_loss=true", "actor.kl_loss_coef=0.3"});
  TestPolicy policy("float32");
  const RandomRows data(/*on_policy=*/false);
  const StepTable& batch = data.batch;
  const auto num_tokens = static_cast<size_t>(batch.num_tokens());
  for (const MicroBatchOptions cut : {kAll, MicroBatchOptions{2, 0}}) {
    ActorLearner learner(policy.model, policy.optimizer, run.objective, cut_by(cut));
    std::vector<float> before_entropy, log_prob(num_tokens), entropy(num_tokens), clipped(num_tokens, -1.0F);
    const auto before = learner.log_probs(policy.model, batch, nullptr, &before_entropy).value();
    ASSERT_TRUE(learner.update(batch, all_rows(batch), {.lr = 1e-2, .trace = {log_prob, entropy, clipped}}).ok());
    const auto mask = batch.get<column::ResponseMask>();
    const auto old = batch.get<column::OldLogProb>(), advantages = batch.get<column::Advantages>();
    int num_clipped = 0, num_free = 0;
    for (size_t t = 0; t < num_tokens; ++t) {
      EXPECT_NEAR(log_prob[t], before[t], 1e-5);
      EXPECT_NEAR(entropy[t], before_entropy[t], 1e-5);
      const double ratio = std::exp(static_cast<double>(before[t]) - static_cast<double>(old[t]));
      const bool is_high = advantages[t] > 0.0F && ratio > 1.2;
      const bool is_low = advantages[t] < 0.0F && (ratio < 0.8 || ratio > 3.0);  // 3: the dual clip
      const bool expected = mask[t] != 0 && (is_high || is_low);
      EXPECT_EQ(clipped[t], expected ? 1.0F : 0.0F) << t << " ratio " << ratio << " advantage " << advantages[t];
      ++(expected ? num_clipped : num_free);
    }
    EXPECT_GT(num_clipped, 3);
    EXPECT_GT(num_free, 3);
  }
}

TEST(ActorObjective, APluginThatCannotBeMadeIsAnErrorInTheLineThatNamesIt) {
  PluginRegistry& registry = shared_builtin_packs();
  const auto error_of = [&](const std::string& text) {
    const auto loaded = load_config_text(default_env(), text, "run.toml", {});
    EXPECT_TRUE(loaded.ok()) << loaded.error().to_string();
    const auto made = ActorObjective::create(registry, *loaded, {});
    return made.ok() ? std::string("made") : made.error().to_string();
  };
  EXPECT_THAT(error_of("[actor]\nuse_kl_loss = true\nkl_loss_type = \"k33\"\n"),
              testing::StartsWith("run.toml:3:1: no kl_estimator is named 'k33'"));
  EXPECT_THAT(error_of("[actor.policy_loss]\nloss_mode = \"gspoo\"\n"),
              testing::StartsWith("run.toml:2:1: no policy_loss is named 'gspoo'"));
  EXPECT_THAT(error_of("[actor.policy_loss]\nloss_mode = \"clip_cov\"\nclip_cov_lb = 6.0\n"),
              testing::StartsWith("run.toml:2:1, policy_loss clip_cov@mortise.policy_loss"));
}

TEST(ActorLearner, RowsWithoutAdvantageAreSeenButSendNothingBack) {
  TestObjective run({"actor.policy_loss.loss_mode=vanilla", "actor.loss_agg_mode=seq-mean-token-sum"});
  TestPolicy policy("float32");
  RandomRows data(true);
  UpdateReport report;
  policy.gradients(run.objective, data.batch, cut_by(kAll), &report);
  EXPECT_EQ(report.sums.num_tokens, std::ranges::count(data.batch.get<column::ResponseMask>(), uint8_t{1}));
  data.batch.make<column::Advantages>();  // zeros
  const auto none = policy.gradients(run.objective, data.batch, cut_by({0, 20}), &report);
  for (const at::Tensor& grad : none) {
    ASSERT_TRUE(grad.defined());
    EXPECT_EQ(grad.norm().item<double>(), 0.0);
  }
  EXPECT_EQ(report.grad_norm, 0.0);
  EXPECT_FALSE(report.skipped);
  EXPECT_GT(report.sums.entropy, 0.0);
}

// A weight that overflows must not end the run with a loss plugin blamed for it, and must not reach the parameters.
TEST(ActorLearner, AnUpdateWithoutFiniteLogProbsIsSkippedAndTouchesNothing) {
  for (const std::string loss : {"vanilla", "gspo", "clip_cov"}) {
    TestObjective run({"actor.policy_loss.loss_mode=" + loss});
    TestPolicy policy("float32");
    const RandomRows data(false);
    at::Tensor broken = policy.model.parameters().back().tensor.detach();
    const at::Tensor kept = broken.clone();
    broken.fill_(std::numeric_limits<float>::infinity());
    std::vector<at::Tensor> before;
    for (const NamedParameter& p : policy.model.parameters()) before.push_back(p.tensor.detach().clone());
    const std::vector<int64_t> rows = all_rows(data.batch);
    ActorLearner learner(policy.model, policy.optimizer, run.objective, cut_by({2, 0}));
    const auto report = learner.update(data.batch, rows, {.lr = 0.1});
    ASSERT_TRUE(report.ok()) << report.error().to_string();
    EXPECT_TRUE(report->skipped);
    EXPECT_TRUE(std::isnan(report->grad_norm));
    EXPECT_EQ(policy.optimizer.num_updates(), 0);
    for (size_t i = 0; i < before.size(); ++i)
      EXPECT_TRUE(policy.model.parameters()[i].tensor.detach().equal(before[i])) << i;
    broken.copy_(kept);
    const auto healed = learner.update(data.batch, rows, {.lr = 0.1, .step = 2, .update_index = 2});
    ASSERT_TRUE(healed.ok());
    EXPECT_FALSE(healed->skipped) << loss;
    EXPECT_EQ(policy.optimizer.num_updates(), 1);
  }
}

// A loss over the whole update on log-probs that are the policy's own: the same gradient with and without the pass.
TEST(ActorLearner, MeasuredLogProbsSaveTheFirstPass) {
  TestObjective run(
      {"actor.policy_loss.loss_mode=kl_cov", "actor.policy_loss.kl_cov_ratio=0.1", "actor.top_entropy_quantile=0.6"});
  TestPolicy policy("float64");
  RandomRows data(false);
  const LearnerOptions options = cut_by({3, 0});
  ActorLearner learner(policy.model, policy.optimizer, run.objective, options);
  ASSERT_TRUE(learner.sees_whole_update());
  std::vector<float> entropy;
  data.batch.put<column::OldLogProb>(learner.log_probs(policy.model, data.batch, nullptr, &entropy).value());
  data.batch.put<column::OldEntropy>(entropy);
  UpdateReport taken, saved;
  const auto with_pass = policy.gradients(run.objective, data.batch, options, &taken);
  const auto without = policy.gradients(run.objective, data.batch, options, &saved, /*old_is_current=*/true);
  EXPECT_LE(worst_relative_l2(without, with_pass), 1e-12);
  EXPECT_NEAR(saved.sums.entropy, taken.sums.entropy, 1e-5);
  // The measured numbers are used: other numbers give another gradient.
  for (float& log_prob : data.batch.edit<column::OldLogProb>()) log_prob -= 0.5F;
  std::ranges::reverse(data.batch.edit<column::OldEntropy>());
  EXPECT_GT(worst_relative_l2(policy.gradients(run.objective, data.batch, options, nullptr, true), with_pass), 1e-3);
}

// Hidden 16, intermediate 24, 2 layers, qkv 32, heads together 16, vocabulary 29: a token uses 2 x 1920 weights, a
// target 16 x 29 more, and a pair of tokens costs 4 x 16 in each layer.
TEST(ActorLearner, CountsTheOperationsOfItsPasses) {
  TestObjective run({"actor.policy_loss.loss_mode=vanilla"});
  TestPolicy policy("float32");
  const std::vector<int64_t> prompt{1, 2, 3}, response{4, 5, 6, 7};
  StepTable batch({{prompt, response, 0}, {prompt, response, 0}});
  batch.put<column::ResponseMask>(std::vector<uint8_t>(8, 1));
  batch.put<column::Advantages>(std::vector<float>(8, 1.0F));
  FlopCount count;
  LearnerOptions options = cut_by(kAll);
  options.pass.flops = &count;
  ActorLearner learner(policy.model, policy.optimizer, run.objective, options);
  // The prompt once, of each response the three tokens that predict another one; 6 pairs and twice 4 + 5 + 6.
  constexpr double kForward = 2.0 * (9 * 2 * 1920 + 8 * 16 * 29) + 2 * 4.0 * 16 * (6 + 2 * 15);
  ASSERT_TRUE(learner.log_probs(policy.model, batch).ok());
  EXPECT_EQ(count.total, kForward);
  const std::vector<int64_t> rows{0, 1};
  ASSERT_TRUE(learner.update(batch, rows, {}).ok());
  EXPECT_EQ(count.total, 4.0 * kForward);
  batch.make<column::Advantages>();  // zeros
  ASSERT_TRUE(learner.update(batch, rows, {}).ok());
  EXPECT_EQ(count.total, 5.0 * kForward);  // nothing to send back
}

// Correction by the current policy: the metrics of rejection in micro-batches cover the whole update.
TEST(ActorLearner, BypassModeDoesNotDependOnTheCut) {
  const std::string table = "algorithm.rollout_correction.";
  for (const std::string preset : {"bypass_pg_is", "bypass_pg_geo_rs_token_tis", "bypass_ppo_clip_k3_rs"}) {
    std::vector<std::string> overrides{table + "preset=" + preset, table + "rollout_is_batch_normalize=true"};
    if (preset.ends_with("k3_rs"))
      overrides.push_back(table + "rollout_rs_threshold=0.6");
    else if (preset != "bypass_pg_is")
      overrides.push_back(table + "rollout_rs_threshold=0.5_3.0");
    TestObjective run(overrides);
    TestPolicy policy("float32");
    const RandomRows data(false);
    const auto whole = policy.gradients(run.objective, data.batch, cut_by(kAll));
    for (const MicroBatchOptions cut : {MicroBatchOptions{1, 0}, {5, 0}, {0, 25}})
      EXPECT_LE(worst_relative_l2(policy.gradients(run.objective, data.batch, cut_by(cut)), whole), 1e-5) << preset;
  }
}

// Rejected tokens do not count in the token-mean, as in verl.
TEST(ActorObjective, BypassModeWeighsTheKeptTokensAlone) {
  TestObjective run({"algorithm.rollout_correction.preset=bypass_pg_geo_rs_seq_tis",
                     "algorithm.rollout_correction.rollout_rs_threshold=0.5_2.0"});
  EXPECT_EQ(run.objective.coupling(), Coupling::kUpdate);
  const std::vector<int64_t> offsets = {0, 2, 3}, ids = {0, 1}, groups = {0, 0};
  const std::vector<float> log_prob = {-1.0F, -2.0F, -4.0F}, rollout = {-1.1F, -1.6F, -2.0F},
                           advantages = {1.0F, 1.0F, 1.0F}, weight = {1.0F / 3, 1.0F / 3, 1.0F / 3};
  const std::vector<uint8_t> mask = {1, 1, 1};
  std::vector<float> grad(3);
  StepView in;
  in.layout = {offsets, ids, groups};
  in.set<column::LogProb>(log_prob);
  in.set<column::OldLogProb>(rollout).set<column::RolloutLogProb>(rollout);
  in.set<column::Advantages>(advantages);
  in.set<column::Weight>(weight);
  in.set<column::ResponseMask>(mask);
  MetricSet metrics;
  const ObjectiveSums sums = run.objective.evaluate(in, {grad, {}}, &metrics).value();
  const double w = std::exp(0.1 - 0.4);  // the first row's weight; the second, at e^-2, is rejected
  EXPECT_NEAR(sums.pg_loss, w * 3.0 / 2.0, 1e-6);
  EXPECT_NEAR(grad[0], -w / 2.0, 1e-6);
  EXPECT_EQ(grad[2], 0.0F);
  EXPECT_NEAR(metrics.value("rollout_corr/rollout_rs_seq_masked_fraction").value_or(-1), 0.5, 1e-9);
}

// A correction weight scales the policy term but not the KL term.
TEST(ActorObjective, RolloutIsWeightsAreTheEnginesOwn) {
  TestObjective run({"actor.use_kl_loss=true", "actor.kl_loss_coef=0.5"});
  const std::vector<int64_t> offsets = {0, 2}, ids = {0}, groups = {0};
  const std::vector<float> log_prob = {-1.0F, -2.0F}, ref = {-1.5F, -1.0F}, advantages = {1.0F, -2.0F},
                           weight = {0.5F, 0.5F}, threes = {3.0F, 3.0F};
  const std::vector<uint8_t> mask = {1, 1};
  std::vector<float> plain_grad(2), grad(2);
  StepView in;
  in.layout = {offsets, ids, groups};
  in.set<column::LogProb>(log_prob).set<column::OldLogProb>(log_prob);
  in.set<column::RefLogProb>(ref);
  in.set<column::Advantages>(advantages);
  in.set<column::Weight>(weight);
  in.set<column::ResponseMask>(mask);
  const ObjectiveSums plain = run.objective.evaluate(in, {plain_grad, {}}, nullptr).value();
  in.set<column::RolloutIsWeights>(threes);
  const ObjectiveSums corrected = run.objective.evaluate(in, {grad, {}}, nullptr).value();
  EXPECT_NEAR(plain.pg_loss, 0.5, 1e-6);  // -(1 - 2) / 2 at ratio 1
  EXPECT_NEAR(corrected.pg_loss, 1.5, 1e-6);
  EXPECT_GT(plain.kl_loss, 0.0);
  EXPECT_DOUBLE_EQ(corrected.kl_loss, plain.kl_loss);
  EXPECT_NEAR(grad[0] - plain_grad[0], -1.0, 1e-6);  // twice more of -advantage x weight
  EXPECT_NEAR(grad[1] - plain_grad[1], 2.0, 1e-6);
}

TEST(EntropyMask, KeepsTheTokensAboveTheInterpolatedQuantile) {
  const std::vector<float> entropy = {0.1F, 9.0F, 0.5F, 0.3F, 0.2F, 0.4F};
  const std::vector<uint8_t> mask = {1, 0, 1, 1, 1, 1};  // over 0.1 .. 0.5; the 9 does not count
  std::vector<uint8_t> keep(6);
  entropy_mask(entropy, mask, 0.5, keep);  // the median is 0.3
  EXPECT_EQ(keep, (std::vector<uint8_t>{0, 0, 1, 1, 0, 1}));
  entropy_mask(entropy, mask, 0.3, keep);  // 0.1 + 0.7 * 0.4 = 0.38
  EXPECT_EQ(keep, (std::vector<uint8_t>{0, 0, 1, 0, 0, 1}));
  entropy_mask(entropy, mask, 1.0, keep);
  EXPECT_EQ(keep, mask);
  const std::vector<uint8_t> none(6, 0);
  entropy_mask(entropy, none, 0.5, keep);
  EXPECT_EQ(keep, none);
}

// A mask must not hide a NaN: the loss has to show it.
TEST(Masks, NoNumberHides) {
  const std::vector<float> entropy = {NAN, 0.1F, 0.5F, NAN, 0.3F};
  const std::vector<uint8_t> mask = {1, 1, 1, 0, 1};
  std::vector<uint8_t> keep(5);
  entropy_mask(entropy, mask, 0.5, keep);  // the median of the others is 0.3
  EXPECT_EQ(keep, (std::vector<uint8_t>{1, 0, 1, 0, 1}));

  const std::vector<int64_t> offsets = {0, 2, 4}, names = {0, 1};
  const std::vector<float> behaviour = {-1, NAN, -1, -1}, log_prob(4, -3.0F), advantages(4, -1.0F);
  const std::vector<uint8_t> all(4, 1);
  std::vector<float> weight(4, 0.5F);
  StepView view;
  view.layout = {offsets, names, names};
  view.set<column::RolloutLogProb>(behaviour).set<column::LogProb>(log_prob);
  view.set<column::Advantages>(advantages).set<column::ResponseMask>(all);
  off_policy_mask(view, 1.0, weight);
  EXPECT_EQ(weight, (std::vector<float>{0.5F, 0.5F, 0, 0}));
}

// The mask takes tokens from the policy term and the entropy bonus, not from the KL term nor from the divisors.
TEST(ActorObjective, TheEntropyMaskLeavesTheKlTermAlone) {
  const std::vector<std::string> terms = {"actor.use_kl_loss=true", "actor.kl_loss_coef=0.5",
                                          "actor.entropy_coeff=0.1"};
  TestObjective plain(terms);
  std::vector<std::string> masking = terms;
  masking.emplace_back("actor.top_entropy_quantile=0.5");
  TestObjective masked(masking);
  EXPECT_EQ(plain.objective.coupling(), Coupling::kToken);
  EXPECT_EQ(masked.objective.coupling(), Coupling::kUpdate);
  const std::vector<int64_t> offsets = {0, 2}, ids = {0}, groups = {0};
  const std::vector<float> log_prob = {-1.0F, -2.0F}, ref = {-1.5F, -1.0F}, advantages = {1.0F, -2.0F},
                           weight = {0.5F, 0.5F}, entropy = {0.25F, 2.0F};
  const std::vector<uint8_t> mask = {1, 1};
  std::vector<float> all(2), some(2), all_entropy(2), some_entropy(2);
  StepView in;
  in.layout = {offsets, ids, groups};
  in.set<column::LogProb>(log_prob).set<column::OldLogProb>(log_prob);
  in.set<column::RefLogProb>(ref);
  in.set<column::Advantages>(advantages);
  in.set<column::Weight>(weight);
  in.set<column::ResponseMask>(mask);
  EXPECT_FALSE(masked.objective.evaluate(in, {some, {}}, nullptr).ok());  // nothing says which tokens
  in.set<column::Entropy>(entropy);
  const ObjectiveSums whole = plain.objective.evaluate(in, {all, all_entropy}, nullptr).value();
  const ObjectiveSums half = masked.objective.evaluate(in, {some, some_entropy}, nullptr).value();
  EXPECT_NEAR(half.pg_loss, 1.0, 1e-6);  // the second token's -(-2) / 2
  EXPECT_DOUBLE_EQ(half.kl_loss, whole.kl_loss);
  EXPECT_NEAR(half.entropy_loss, 1.0, 1e-6);
  EXPECT_DOUBLE_EQ(half.entropy, whole.entropy);  // the metric is over all tokens
  EXPECT_NEAR(all[0] - some[0], -0.5, 1e-6);
  EXPECT_EQ(all[1], some[1]);
  EXPECT_EQ(some_entropy[0], 0.0F);
  EXPECT_EQ(some_entropy[1], all_entropy[1]);
}

}  // namespace
}  // namespace mortise
