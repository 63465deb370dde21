// Mixtures of experts in whole runs: the losses of routers, and routing replay. A run that stops and resumes has the same
// bits, training takes the sampler's experts, and what cannot work is refused.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "program.h"
#include "run_bits.h"

namespace mortise::test {
namespace {

using testing::HasSubstr;

const std::string kFew =
    "train run.toml data.train_batch_size=8 actor.ppo_mini_batch_size=4 trainer.total_training_steps=4 "
    "trainer.save_freq=1 trainer.logger='[]' ";
const std::string kLosses = "actor.router_aux_loss_coef=0.1 actor.router_z_loss_coef=0.01 ";

std::vector<Json> metrics_of(const TaskFolder& task, const std::string& command) {
  const Outcome done = task.mortise(command);
  EXPECT_EQ(done.code, 0) << done.output;
  return rows_of(task.path() / "out/metrics.jsonl");
}

TEST(Routers, LossesBalanceTheExperts) {
  const TaskFolder task("--experts");
  const auto rows = metrics_of(task,
                               "train run.toml trainer.total_training_steps=25 trainer.logger='[]' "
                               "actor.router_aux_loss_coef=3 actor.router_z_loss_coef=0.1");
  ASSERT_EQ(rows.size(), 25U);
  // 4 is an even spread over the experts: each token takes four of them.
  EXPECT_GT(number_of(rows[0], "actor/router_aux_loss"), 4.0);
  EXPECT_LT(number_of(rows[24], "actor/router_aux_loss"), number_of(rows[0], "actor/router_aux_loss"));
  EXPECT_LT(number_of(rows[24], "actor/router_z_loss"), number_of(rows[0], "actor/router_z_loss"));
  EXPECT_GT(number_of(rows[0], "actor/expert_load/max"), 1.0);
  EXPECT_LT(number_of(rows[0], "actor/expert_load/min"), 1.0);
}

TEST(Routers, SupervisedLearningHasTheLossesToo) {
  const TaskFolder task("--experts");
  const Outcome done = task.mortise(
      "sft run.toml data.train_files='[\"data/sft.jsonl\"]' sft.total_training_steps=3 data.max_response_length=8 "
      "sft.train_batch_size=8 trainer.logger='[]' " +
      kLosses);
  ASSERT_EQ(done.code, 0) << done.output;
  const auto rows = rows_of(task.path() / "out/metrics.jsonl");
  ASSERT_EQ(rows.size(), 3U);
  EXPECT_GT(number_of(rows[0], "actor/router_aux_loss"), 3.9);
  EXPECT_GT(number_of(rows[0], "actor/router_z_loss"), 0.0);
}

// bfloat16 weights choose other experts at some tokens.
TEST(Routers, TrainingTakesTheExpertsOfTheSampler) {
  std::map<std::string, double> gap;
  for (const std::string mode : {"disabled", "R3"}) {
    const TaskFolder task("--experts");
    const auto rows = metrics_of(task,
                                 "train run.toml trainer.total_training_steps=1 trainer.logger='[]' rollout.n=16 "
                                 "data.train_batch_size=64 actor.ppo_mini_batch_size=32 rollout.dtype=bfloat16 "
                                 "actor.router_replay.mode=" +
                                     mode);
    ASSERT_EQ(rows.size(), 1U);
    gap[mode] = number_of(rows[0], "training/rollout_probs_diff_max");
  }
  EXPECT_GT(gap["R3"], 0.0);
  EXPECT_LT(gap["R3"], 0.5 * gap["disabled"]);
}

TEST(Routers, AResumeHasTheSameBits) {
  for (const std::string mode : {"R2", "R3"}) {
    const std::string command = kFew + kLosses + "actor.ppo_epochs=2 actor.router_replay.mode=" + mode;
    const TaskFolder straight("--experts"), stopped("--experts");
    for (const TaskFolder* task : {&straight, &stopped}) metrics_of(*task, command);
    std::filesystem::rename(stopped.path() / "out", stopped.path() / "whole");
    cut_back(stopped.path() / "whole", stopped.path() / "out", 2, 4);
    const Outcome resumed = stopped.mortise(command);
    ASSERT_EQ(resumed.code, 0) << resumed.output;
    for (const char* file : {"huggingface/model.safetensors", "state.safetensors"}) {
      const Path path = Path("out/global_step_4") / file;
      EXPECT_EQ(hash_of(straight.path() / path), hash_of(stopped.path() / path)) << mode << " " << file;
    }
  }
}

TEST(Routers, WhatCannotWorkIsRefused) {
  const TaskFolder task("--experts"), dense;
  const auto refused = [](const TaskFolder& folder, const std::string& settings) {
    const Outcome outcome = folder.mortise("train run.toml --dry-run " + settings);
    EXPECT_EQ(outcome.code, 2) << settings << outcome.output;
    return outcome.output;
  };
  EXPECT_THAT(refused(dense, "actor.router_aux_loss_coef=0.1"), HasSubstr("no layer of this model has experts"));
  EXPECT_THAT(refused(dense, "actor.router_z_loss_coef=0.1"), HasSubstr("'actor.router_z_loss_coef'"));
  EXPECT_THAT(refused(dense, "actor.router_replay.mode=R2"), HasSubstr("'actor.router_replay.mode'"));
  const std::string r3 = "actor.router_replay.mode=R3 ";
  EXPECT_THAT(refused(task, r3 + "rollout.name=replay rollout.replay.path=data/train.jsonl"),
              HasSubstr("does not tell which experts it took"));
  for (const char* pieces : {"trainer.mode=async trainer.max_staleness=2", "rollout.over_sampling=1.5"})
    EXPECT_THAT(refused(task, r3 + pieces), HasSubstr("sampled in pieces, but 'actor.router_replay.mode'"));
  EXPECT_THAT(refused(task, "actor.router_replay.mode=R2 algorithm.rollout_correction.bypass_mode=true"),
              HasSubstr("no pass computes old log-probs"));
  const Outcome fits = task.mortise("train run.toml --dry-run " + r3);
  EXPECT_EQ(fits.code, 0) << fits.output;
  EXPECT_THAT(fits.output, HasSubstr("experts of the step's tokens"));
  // null: the model's own coefficient, or none.
  EXPECT_EQ(dense.mortise("train run.toml --dry-run actor.router_aux_loss_coef=null").code, 0);
}

}  // namespace
}  // namespace mortise::test
