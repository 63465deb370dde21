// The engine's optional stages in whole runs: they do what they say, and a resume finds them where they were.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "program.h"
#include "run_bits.h"

namespace mortise::test {
namespace {

const std::string kSmall =
    "train run.toml data.train_batch_size=8 actor.ppo_mini_batch_size=4 trainer.total_training_steps=6 "
    "trainer.save_freq=1 ";

void expect_resumes(const std::string& settings) { expect_resumed_bits(kSmall + settings, 3, 6); }

TEST(Stages, AResumeFindsTheirStates) {
  expect_resumes(
      "algorithm.filter_groups.enable=true data.gen_batch_size=6 rollout.n=3 actor.use_kl_loss=true "
      "actor.kl_loss_type=full");
  expect_resumes(
      "actor.use_kl_loss=true ref.sync_steps=2 actor.entropy_ctrl.type=adaptive actor.entropy_coeff=0.01 "
      "actor.entropy_ctrl.target_entropy=2.5");
  expect_resumes("algorithm.adv_estimator=gae algorithm.lam=0.95 critic.ppo_epochs=2 trainer.critic_warmup=2");
}

// All of them at once, where each has to leave the others what they need.
TEST(Stages, AResumeFindsTheStatesOfAllStagesTogether) {
  const std::string correction = " algorithm.rollout_correction.";
  expect_resumes(
      "reward.0.pattern='^.[0-6]' rollout.n=4 algorithm.filter_groups.enable=true data.gen_batch_size=6 "
      "algorithm.adv_estimator=gae algorithm.lam=0.9 critic.ppo_epochs=2 actor.ppo_epochs=2 actor.shuffle=true "
      "actor.use_kl_loss=true actor.kl_loss_type=full actor.kl_loss_coef=0.05 algorithm.use_kl_in_reward=true "
      "algorithm.kl_penalty=k2 algorithm.kl_ctrl.type=adaptive algorithm.kl_ctrl.kl_coef=0.2 "
      "algorithm.kl_ctrl.horizon=200 ref.sync_steps=2 ref.mixup_alpha=0.5 actor.entropy_ctrl.type=adaptive "
      "actor.entropy_coeff=0.01 actor.entropy_ctrl.target_entropy=2.5 actor.top_entropy_quantile=0.7 "
      "actor.off_policy_mask_threshold=0.05 algorithm.mask_truncated_completions=true" +
      correction + "rollout_is=sequence" + correction + "rollout_is_batch_normalize=true" + correction +
      "rollout_rs=token_k1,seq_max_k3" + correction + "rollout_rs_threshold=0.2_5.0,1.0");
}

TEST(Stages, PpoWithACriticLearns) {
  const TaskFolder task;
  const Outcome outcome = task.mortise(
      "train run.toml algorithm.adv_estimator=gae algorithm.lam=0.95 critic.optim.lr=3e-3 trainer.critic_warmup=3");
  ASSERT_EQ(outcome.code, 0) << outcome.output;
  const std::vector<Json> rows = rows_of(task.path() / "out/metrics.jsonl");
  ASSERT_EQ(rows.size(), 40U);
  EXPECT_FALSE(rows[1].contains("actor/grad_norm"));  // the policy waits for the critic
  EXPECT_TRUE(rows[2].contains("actor/grad_norm"));
  EXPECT_LT(number_of(rows[39], "critic/vf_loss"), number_of(rows[0], "critic/vf_loss"));
  double score = 0.0;
  for (size_t i = 35; i < 40; ++i) score += number_of(rows[i], "critic/score/mean") / 5.0;
  EXPECT_GT(score, 0.8);
}

TEST(Stages, EstimatorsGetTheBaselinesTheyAskFor) {
  for (const std::string estimator : {"remax", "optimal_token_baseline", "tir_optimal_token_baseline"}) {
    const TaskFolder task;
    const Outcome outcome = task.mortise(kSmall + "algorithm.adv_estimator=" + estimator);
    ASSERT_EQ(outcome.code, 0) << outcome.output;
    const std::vector<Json> rows = rows_of(task.path() / "out/metrics.jsonl");
    ASSERT_EQ(rows.size(), 6U);
    EXPECT_GT(number_of(rows[0], "actor/grad_norm"), 0.0) << estimator;
    EXPECT_EQ(rows[0].contains("timing_s/gen_max"), estimator == "remax");
  }
}

// Rewards of 0 and 1 at random: a baseline that was itself sampled would differ from the greedy one in half the
// prompts.
TEST(Stages, TheBaselineOfRemaxIsThatOfTheGreedyCompletion) {
  const TaskFolder task;
  const Outcome outcome = task.mortise(
      "train run.toml data.train_batch_size=16 trainer.total_training_steps=1 algorithm.adv_estimator=remax "
      "trainer.rollout_data_dir=dump reward.0.pattern='^.[0-6]'");
  ASSERT_EQ(outcome.code, 0) << outcome.output;
  const std::vector<Json> samples = rows_of(task.path() / "dump/1.jsonl");
  ASSERT_EQ(samples.size(), 16U * 8U);
  std::string prompts;
  for (size_t i = 0; i < samples.size(); i += 8) prompts += Json{{"prompt", samples[i]["input"]}}.dump() + "\n";
  task.write("prompts.jsonl", prompts);
  ASSERT_EQ(task.mortise("generate --model model --prompts prompts.jsonl --out greedy.jsonl rollout.temperature=0 "
                         "rollout.response_length=3")
                .code,
            0);
  const std::vector<Json> greedy = rows_of(task.path() / "greedy.jsonl");
  ASSERT_EQ(greedy.size(), 16U);
  for (size_t i = 0; i < samples.size(); ++i) {
    const std::string text = greedy[i / 8]["completions"][0]["text"].get<std::string>();
    const double baseline = text.size() > 1 && text[1] >= '0' && text[1] <= '6' ? 1.0 : 0.0;
    EXPECT_EQ(number_of(samples[i], "advantage"), number_of(samples[i], "score") - baseline) << i;
  }
}

// What a step subtracts, and the coefficients of both controllers for the next step.
TEST(Stages, TheKlInTheRewardAndTheEntropyBonusFollowTheirControllers) {
  const TaskFolder task;
  const Outcome outcome = task.mortise(
      "train run.toml data.train_batch_size=8 actor.ppo_mini_batch_size=8 trainer.total_training_steps=12 "
      "rollout.ignore_eos=true algorithm.use_kl_in_reward=true algorithm.kl_penalty=k2 algorithm.kl_ctrl.type=adaptive "
      "algorithm.kl_ctrl.kl_coef=0.5 algorithm.kl_ctrl.target_kl=0.01 algorithm.kl_ctrl.horizon=320 "
      "actor.entropy_ctrl.type=adaptive actor.entropy_coeff=0.01 actor.entropy_ctrl.delta=0.004 "
      "actor.entropy_ctrl.max_coeff=0.015 actor.entropy_ctrl.target_entropy=2.5");
  ASSERT_EQ(outcome.code, 0) << outcome.output;
  const std::vector<Json> rows = rows_of(task.path() / "out/metrics.jsonl");
  ASSERT_EQ(rows.size(), 12U);
  double kl_coeff = 0.5, entropy_coeff = 0.01, entropy = INFINITY, largest = 0.0;
  int num_applied = 0;
  for (const Json& row : rows) {
    const double kl = number_of(row, "actor/reward_kl_penalty");
    EXPECT_NEAR(number_of(row, "actor/reward_kl_penalty_coeff"), kl_coeff, 1e-9);
    // Three tokens in every row, so that the sum over a row is thrice its mean.
    EXPECT_NEAR(number_of(row, "critic/score/mean") - number_of(row, "critic/rewards/mean"), kl_coeff * 3 * kl, 1e-5);
    kl_coeff *= 1 + std::clamp(kl / 0.01 - 1, -0.2, 0.2) * 64 / 320;
    largest = std::max(largest, kl);

    const double applied = entropy <= 2.5 ? entropy_coeff : 0.0;
    EXPECT_NEAR(number_of(row, "actor/entropy_coeff"), applied, 1e-9);
    num_applied += applied > 0 ? 1 : 0;
    entropy = number_of(row, "entropy");
    entropy_coeff = std::clamp(entropy_coeff + (entropy <= 2.5 ? 0.004 : -0.004), 0.0, 0.015);
    // TRL's names: the controller's coefficient after the update, whether or not that applied one.
    EXPECT_NEAR(number_of(row, "entropy_coef"), entropy_coeff, 1e-9);
    EXPECT_EQ(number_of(row, "policy_loss"), number_of(row, "actor/pg_loss"));
  }
  EXPECT_GT(largest, 0.012) << "the KL passes its target";
  EXPECT_GT(number_of(rows[2], "actor/reward_kl_penalty"), 0);
  EXPECT_GT(num_applied, 0);
  EXPECT_LT(num_applied, 11);
}

// The estimator of the reward's KL takes its clamps as the loss's does.
TEST(Stages, TheKlInTheRewardHasItsClamps) {
  const TaskFolder task;
  const std::string run =
      "train run.toml data.train_batch_size=8 actor.ppo_mini_batch_size=8 trainer.total_training_steps=3 "
      "algorithm.use_kl_in_reward=true algorithm.kl_penalty=k2 ";
  const Outcome outcome = task.mortise(run + "algorithm.kl_params.max_kl=0");
  ASSERT_EQ(outcome.code, 0) << outcome.output;
  const std::vector<Json> rows = rows_of(task.path() / "out/metrics.jsonl");
  ASSERT_EQ(rows.size(), 3U);
  for (const Json& row : rows) EXPECT_EQ(number_of(row, "actor/reward_kl_penalty"), 0);
  const Outcome unknown = task.mortise(run + "algorithm.kl_params.max_kll=1 trainer.default_local_dir=other");
  EXPECT_EQ(unknown.code, 2) << unknown.output;
  EXPECT_NE(unknown.output.find("algorithm.kl_params.max_kll"), std::string::npos) << unknown.output;
}

// Old log-probs where one update takes the whole batch, and a reference that no KL asks for, cost no pass.
TEST(Stages, PassesAreComputedOnlyWhereSomethingReadsThem) {
  struct Case {
    const char* settings;
    bool old_log_prob, reference;
  };
  const TaskFolder task;
  int num_runs = 0;
  for (const Case& c : {Case{"", false, false}, Case{"actor.ppo_epochs=2", true, false},
                        Case{"actor.ppo_mini_batch_size=4", true, false}, Case{"actor.use_kl_loss=true", false, true},
                        Case{"algorithm.use_kl_in_reward=true", true, true}}) {
    SCOPED_TRACE(c.settings);
    const std::string out = "passes" + std::to_string(num_runs++);
    const Outcome outcome = task.mortise(
        "train run.toml data.train_batch_size=8 actor.ppo_mini_batch_size=8 trainer.total_training_steps=1 "
        "trainer.default_local_dir=" +
        out + " " + c.settings);
    ASSERT_EQ(outcome.code, 0) << outcome.output;
    const std::vector<Json> rows = rows_of(task.path() / out / "metrics.jsonl");
    ASSERT_EQ(rows.size(), 1U);
    EXPECT_EQ(rows[0].contains("timing_s/old_log_prob"), c.old_log_prob);
    EXPECT_EQ(rows[0].contains("timing_s/ref"), c.reference);
  }
}

TEST(Stages, FilteredGroupsAllDiffer) {
  const TaskFolder task;
  const Outcome outcome = task.mortise(kSmall + "algorithm.filter_groups.enable=true rollout.n=3");
  ASSERT_EQ(outcome.code, 0) << outcome.output;
  double dropped = 0.0;
  for (const Json& row : rows_of(task.path() / "out/metrics.jsonl")) {
    EXPECT_EQ(number_of(row, "frac_reward_zero_std"), 0.0);
    dropped += number_of(row, "training/filter_groups/dropped");
  }
  EXPECT_GT(dropped, 0.0);
  const Outcome never = task.mortise(
      "train run.toml trainer.default_local_dir=never algorithm.filter_groups.enable=true reward.0.pattern=^nothing "
      "algorithm.filter_groups.max_num_gen_batches=2");
  EXPECT_EQ(never.code, 3) << never.output;
  EXPECT_NE(never.output.find("only 0 of the 16 groups"), std::string::npos) << never.output;
  EXPECT_NE(never.output.find("max_num_gen_batches"), std::string::npos) << never.output;
  const Outcome unknown = task.mortise(
      "train run.toml trainer.default_local_dir=unknown algorithm.filter_groups.enable=true "
      "algorithm.filter_groups.metric=acc");
  EXPECT_EQ(unknown.code, 2) << unknown.output;
  EXPECT_NE(unknown.output.find("override 'algorithm.filter_groups.metric=acc', step 1: "), std::string::npos)
      << unknown.output;
}

TEST(Stages, TheReferenceFollowsThePolicyWhenRefreshed) {
  const auto kl_of = [](const std::string& settings) {
    const TaskFolder task;
    const Outcome outcome = task.mortise(kSmall + "actor.ppo_mini_batch_size=8 actor.use_kl_loss=true " + settings);
    EXPECT_EQ(outcome.code, 0) << outcome.output;
    std::vector<double> values;
    for (const Json& row : rows_of(task.path() / "out/metrics.jsonl")) {
      values.push_back(number_of(row, "kl"));
      EXPECT_EQ(row.contains("timing_s/ref"), settings.find("full") == std::string::npos);
    }
    return values;
  };
  const std::vector<double> fixed = kl_of(""), copied = kl_of("ref.sync_steps=1 ref.mixup_alpha=1.0");
  ASSERT_EQ(fixed.size(), 6U);
  ASSERT_EQ(copied.size(), 6U);
  EXPECT_GT(fixed.back(), 1e-5);
  for (const double kl : copied) EXPECT_LT(kl, 1e-9);  // one update a step, from a reference that is the policy
  const std::vector<double> second = kl_of("ref.sync_steps=2 ref.mixup_alpha=1.0");
  ASSERT_EQ(second.size(), 6U);
  for (size_t i = 0; i < second.size(); ++i)  // every second step the reference is the policy again
    EXPECT_EQ(second[i] < 1e-9, i % 2 == 0) << "step " << i + 1 << ": " << second[i];
  // Over the whole vocabulary, with an adapter whose base is the reference.
  for (const std::string settings : {"actor.kl_loss_type=full", "actor.kl_loss_type=full model.lora_rank=4"}) {
    const std::vector<double> full = kl_of(settings);
    ASSERT_EQ(full.size(), 6U);
    EXPECT_LT(full.front(), 1e-9);
    EXPECT_GT(full.back(), 1e-6) << settings;
  }
}

TEST(Stages, TruncatedCompletionsTeachNothingWhereMasked) {
  const TaskFolder task;
  const Outcome outcome = task.mortise(
      "train run.toml trainer.total_training_steps=1 algorithm.mask_truncated_completions=true rollout.ignore_eos=true "
      "rollout.response_length=3");
  ASSERT_EQ(outcome.code, 0) << outcome.output;
  const std::vector<Json> rows = rows_of(task.path() / "out/metrics.jsonl");
  EXPECT_EQ(number_of(rows[0], "actor/grad_norm"), 0.0);  // every row was cut
  EXPECT_GT(number_of(rows[0], "critic/score/max"), 0.0);
}

TEST(Stages, RolloutCorrectionInBothModes) {
  const std::string table = " algorithm.rollout_correction.";
  for (const std::string preset : {"decoupled_seq_is_rs", "bypass_ppo_clip_k3_rs", "bypass_pg_is"}) {
    const TaskFolder task;
    const Outcome outcome = task.mortise(kSmall + table + "preset=" + preset);
    ASSERT_EQ(outcome.code, 0) << outcome.output;
    const std::vector<Json> rows = rows_of(task.path() / "out/metrics.jsonl");
    ASSERT_EQ(rows.size(), 6U);
    for (const Json& row : rows) {
      EXPECT_LT(number_of(row, "training/rollout_probs_diff_mean"), preset.starts_with("bypass") ? 0.2 : 1e-6);
      EXPECT_GE(number_of(row, "rollout_corr/k3_kl"), -1e-9);
      if (preset != "bypass_ppo_clip_k3_rs") {
        EXPECT_NEAR(number_of(row, "rollout_corr/rollout_is_mean"), 1.0, preset.starts_with("bypass") ? 0.7 : 1e-3);
      }
      if (preset != "bypass_pg_is") {
        EXPECT_LT(number_of(row, "rollout_corr/rollout_rs_masked_fraction"), preset.starts_with("bypass") ? 0.9 : 1e-3);
      }
    }
  }
  // A step does not learn from rejected tokens. Bounds around a ratio of 1 keep every token, and bounds far from 1 keep
  // none.
  for (const auto& [bounds, rejected] : {std::pair<std::string, double>{"0.5_2.0", 0.0}, {"10.0_20.0", 1.0}}) {
    const TaskFolder task;
    const Outcome outcome = task.mortise(kSmall + "trainer.total_training_steps=1" + table + "rollout_rs=token_k1" +
                                         table + "rollout_rs_threshold=" + bounds);
    ASSERT_EQ(outcome.code, 0) << outcome.output;
    const Json row = rows_of(task.path() / "out/metrics.jsonl").at(0);
    EXPECT_EQ(number_of(row, "rollout_corr/rollout_rs_masked_fraction"), rejected);
    EXPECT_EQ(number_of(row, "actor/grad_norm") == 0.0, rejected == 1.0) << number_of(row, "actor/grad_norm");
  }
  const TaskFolder task;
  const Outcome refused =
      task.mortise("train run.toml" + table + "rollout_rs=seq_max_k9" + table + "rollout_rs_threshold=1");
  EXPECT_EQ(refused.code, 2) << refused.output;
  EXPECT_NE(refused.output.find("seq_max_k3"), std::string::npos) << refused.output;
  EXPECT_NE(refused.output.find("override 'algorithm.rollout_correction.rollout_rs=seq_max_k9'"), std::string::npos);
}

}  // namespace
}  // namespace mortise::test
