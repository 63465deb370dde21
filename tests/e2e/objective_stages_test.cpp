// What a step learns from, in whole runs: filtered log-probs, a teacher, chosen rows, recorded completions. Training
// agrees with sampling, a resume has the same bits, and the recipes learn.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "program.h"
#include "run_bits.h"

namespace mortise::test {
namespace {

using testing::HasSubstr;

const std::string kFew =
    "train run.toml data.train_batch_size=8 actor.ppo_mini_batch_size=4 trainer.total_training_steps=4 "
    "trainer.save_freq=1 trainer.logger='[]' ";
const std::string kFiltered =
    "rollout.filtered_log_probs=true rollout.top_k=9 rollout.top_p=0.8 rollout.min_p=0.02 rollout.temperature=0.9 ";
const std::string kPenalties = "rollout.repetition_penalty=1.3 rollout.presence_penalty=0.2 rollout.min_new_tokens=2 ";

// The trainer's log-probs over the kept tokens are those that the sampler drew with.
TEST(ObjectiveStages, FilteredLogProbsOfTrainingAreThoseOfSampling) {
  for (const std::string& penalties : {std::string(), kPenalties}) {
    const TaskFolder task;
    const Outcome done = task.mortise(kFew + kFiltered + penalties + "trainer.rollout_data_dir=dump");
    ASSERT_EQ(done.code, 0) << done.output;
    const std::vector<Json> rows = rows_of(task.path() / "out/metrics.jsonl");
    ASSERT_EQ(rows.size(), 4U);
    for (const Json& row : rows) {
      EXPECT_LT(number_of(row, "training/rollout_probs_diff_max"), 2e-5);
      EXPECT_LT(number_of(row, "sampling/sampling_logp_difference/max"), 2e-4);
      EXPECT_EQ(number_of(row, "training/kept_tokens/missing_frac"), 0.0);
      EXPECT_GT(number_of(row, "training/kept_tokens/mean"), 1.5);
      EXPECT_LE(number_of(row, "training/kept_tokens/mean"), 9.0);
    }
    const std::vector<Json> dumped = rows_of(task.path() / "dump/1.jsonl");
    EXPECT_TRUE(dumped.front().contains("filtered_log_probs"));
    EXPECT_FALSE(dumped.front().contains("log_probs"));
  }
}

TEST(ObjectiveStages, WhatCannotBeExactIsRefused) {
  const TaskFolder task;
  const auto refused = [&](const std::string& settings) {
    const Outcome outcome = task.mortise("train run.toml --dry-run " + settings);
    EXPECT_EQ(outcome.code, 2) << settings << outcome.output;
    return outcome.output;
  };
  const std::string on = "rollout.filtered_log_probs=true ";
  EXPECT_THAT(refused(on + "rollout.repetition_penalty=1.2"), HasSubstr("needs a filter"));
  EXPECT_THAT(refused(on + "rollout.top_k=5 actor.use_kl_loss=true actor.kl_loss_type=full"),
              HasSubstr("use an estimator"));
  EXPECT_THAT(refused(on + "rollout.top_k=5 algorithm.filter_groups.enable=true"), HasSubstr("earlier weights"));
  EXPECT_THAT(refused(on + "rollout.top_k=5 algorithm.adv_estimator=optimal_token_baseline"),
              HasSubstr("probabilities of the whole vocabulary"));
  EXPECT_THAT(refused("teacher.loss_coef=1"), HasSubstr("there is no teacher"));
  EXPECT_THAT(refused("algorithm.use_pf_ppo=true algorithm.rollout_correction.bypass_mode=true"),
              HasSubstr("remove one of the two"));
  EXPECT_THAT(refused("algorithm.filter_groups.enable=true algorithm.filter_groups.min_mean=1 "
                      "algorithm.filter_groups.max_mean=0.5"),
              HasSubstr("is not below max_mean"));
}

TEST(ObjectiveStages, AResumeFindsTheirStates) {
  expect_resumed_bits(kFew + kFiltered + kPenalties + "actor.use_kl_loss=true actor.ppo_epochs=2", 2, 4);
  expect_resumed_bits(
      kFew + "teacher.path=model teacher.loss_coef=0.1 teacher.advantage_coef=0.1 algorithm.best_of_n=5", 2, 4);
  expect_resumed_bits(kFew + "algorithm.use_pf_ppo=true algorithm.adv_estimator=gae reward.0.pattern='^.[0-6]'", 2, 4);
}

// Updates counted in rows: whole groups are the updates that prompts count, and parts of groups resume.
TEST(ObjectiveStages, UpdatesOfRowsAreThoseOfPromptsOrHoldPartsOfGroups) {
  const TaskFolder by_prompts, by_rows;
  ASSERT_EQ(by_prompts.mortise(kFew).code, 0);
  const Outcome same = by_rows.mortise(kFew + "actor.rows_per_update=32");
  ASSERT_EQ(same.code, 0) << same.output;
  expect_same_bits(bits_of_run(by_rows.path() / "out", 4), bits_of_run(by_prompts.path() / "out", 4), "32 rows");

  const std::string parts = kFew + "actor.rows_per_update=4 actor.shuffle=true actor.ppo_epochs=2 ";
  expect_resumed_bits(parts, 2, 4);
  const TaskFolder task;
  ASSERT_EQ(task.mortise(parts).code, 0);
  EXPECT_EQ(rows_of(task.path() / "out/updates.jsonl").size(), 4U * 2 * 64 / 4);
  const auto refused = [&](const std::string& settings) {
    const Outcome outcome = task.mortise("train run.toml --dry-run data.train_batch_size=8 " + settings);
    EXPECT_EQ(outcome.code, 2) << settings << outcome.output;
    return outcome.output;
  };
  EXPECT_THAT(refused("actor.rows_per_update=12"), HasSubstr("choose a divisor of 64"));
  for (const char* whole : {"actor.policy_loss.loss_mode=real", "actor.loss_agg_mode=prompt-mean",
                            "algorithm.adv_estimator=gae critic.loss_agg_mode=prompt-mean"})
    EXPECT_THAT(refused(std::string("actor.rows_per_update=4 ") + whole),
                HasSubstr("remove it, and set actor.ppo_mini_batch_size"));
}

// A run on its own dump, and on what `generate` writes.
// A replay samples nothing, so its updates compute what those of the run may reuse.
TEST(ObjectiveStages, AReplayOfADumpIsTheSameRun) {
  const TaskFolder task;
  ASSERT_EQ(task.mortise(kFew + "trainer.rollout_data_dir=dump rollout.reuse_forward_mib=0").code, 0);
  std::string all;
  for (const char* step : {"1", "2", "3", "4"}) {
    for (const Json& row : rows_of(task.path() / "dump" / (std::string(step) + ".jsonl"))) all += dump_json(row) + "\n";
  }
  task.write("all.jsonl", all);
  const Outcome again =
      task.mortise(kFew + "trainer.default_local_dir=again rollout.name=replay rollout.replay.path=all.jsonl");
  ASSERT_EQ(again.code, 0) << again.output;
  const Path model = "global_step_4/huggingface/model.safetensors";
  EXPECT_EQ(hash_of(task.path() / "out" / model), hash_of(task.path() / "again" / model));
  const auto steps = rows_of(task.path() / "out/metrics.jsonl"),
             replayed = rows_of(task.path() / "again/metrics.jsonl");
  for (size_t i = 0; i < 4; ++i) {
    EXPECT_EQ(number_of(steps[i], "training/rollout_probs_diff_max"),
              number_of(replayed[i], "training/rollout_probs_diff_max"));
  }
  const Outcome other = task.mortise(kFew +
                                     "trainer.default_local_dir=n rollout.n=4 rollout.name=replay "
                                     "rollout.replay.path=all.jsonl");
  EXPECT_NE(other.code, 0);
  EXPECT_THAT(other.output, HasSubstr("all.jsonl:5: the prompt differs"));
}

TEST(ObjectiveStages, AReplayTakesWhatGenerateWrites) {
  const TaskFolder task;
  std::string prompts;
  for (int i = 10; i < 26; ++i) prompts += Json{{"prompt", std::to_string(i) + "+10="}}.dump() + "\n";
  task.write("prompts.jsonl", prompts);
  ASSERT_EQ(task.mortise("generate --model model --prompts prompts.jsonl --out made.jsonl rollout.n=4 "
                         "rollout.response_length=3")
                .code,
            0);
  const Outcome done = task.mortise(
      "train run.toml data.train_files=prompts.jsonl data.shuffle=false rollout.n=4 rollout.name=replay "
      "rollout.replay.path=made.jsonl trainer.total_training_steps=1 trainer.logger='[]'");
  ASSERT_EQ(done.code, 0) << done.output;
  EXPECT_LT(number_of(rows_of(task.path() / "out/metrics.jsonl").front(), "training/rollout_probs_diff_max"), 1e-5);
}

// The recipes on a task that fresh weights learn in seconds: begin with a 7.
TEST(ObjectiveStages, TheRecipesLearn) {
  const std::string configs = std::string(MORTISE_SOURCE_DIR) + "/configs/";
  struct Recipe {
    const char* name;
    const char* more;
  };
  for (const Recipe& recipe :
       {Recipe{"ppo", "data.train_batch_size=64 actor.ppo_mini_batch_size=32 critic.optim.lr=3e-3"},
        Recipe{"dapo",
               "data.train_batch_size=16 data.gen_batch_size=16 actor.ppo_mini_batch_size=8 "
               "algorithm.filter_groups.max_num_gen_batches=0 trainer.total_training_steps=10"},
        Recipe{"dr_grpo", "data.train_batch_size=16 actor.ppo_mini_batch_size=16"},
        Recipe{"gspo", "data.train_batch_size=16 actor.ppo_mini_batch_size=16"}}) {
    SCOPED_TRACE(recipe.name);
    const TaskFolder task;
    const Outcome done = task.mortise(
        "train " + configs + recipe.name + ".toml model.path=model data.train_files=data/train.jsonl " +
        "data.val_files=[] reward.0.use=regex reward.0.pattern='^7' reward.0.column=null trainer.total_training_steps=30 "
        "data.max_response_length=4 "
        "actor.optim.lr=3e-3 actor.optim.lr_scheduler_type=constant trainer.default_local_dir=out "
        "trainer.num_threads=2 trainer.logger='[]' " +
        recipe.more);
    ASSERT_EQ(done.code, 0) << done.output;
    EXPECT_GT(mean_score_of_last(task.path() / "out/metrics.jsonl", 3, "critic/score/mean"), 0.7);
  }
}

// ref.path: the initial folder is the reference that a run has anyway, also of an adapter; another one is another KL.
TEST(ObjectiveStages, AReferenceOfItsOwn) {
  const TaskFolder task;
  const std::string few = kFew + "actor.use_kl_loss=true actor.kl_loss_coef=0.1 rollout.reuse_forward_mib=0 ";
  const auto bits = [&](const std::string& settings, const std::string& out) {
    const Outcome done = task.mortise(few + settings + " trainer.default_local_dir=" + out);
    EXPECT_EQ(done.code, 0) << done.output;
    auto all = bits_of_run(task.path() / out, 4);
    all.erase("state.json");  // it also has the digest of what the run read
    return all;
  };
  const auto first_kl = [&](const std::string& out) {
    return number_of(rows_of(task.path() / out / "updates.jsonl").front(), "kl");
  };
  expect_same_bits(bits("ref.path=model", "same"), bits("", "plain"), "the initial model");
  const std::string adapter = "model.lora_rank=2 ";
  expect_same_bits(bits(adapter + "ref.path=model", "same_base"), bits(adapter, "adapter"), "the adapter's base");
  const std::string later = " ref.path=plain/global_step_4/huggingface";
  bits(later, "other");
  EXPECT_EQ(first_kl("plain"), 0.0);
  EXPECT_GT(first_kl("other"), 1e-5);
  // The adapter that a run continues, as the reference.
  bits("model.lora_adapter_path=adapter/global_step_4/huggingface", "from_base");
  bits("model.lora_adapter_path=adapter/global_step_4/huggingface ref.path=adapter/global_step_4/huggingface",
       "from_adapter");
  EXPECT_GT(first_kl("from_base"), 1e-5);
  EXPECT_LT(first_kl("from_adapter"), 1e-9);
  // A resume finds an edit of it.
  const std::string moved = few + " trainer.default_local_dir=moved trainer.total_training_steps=";
  ASSERT_EQ(run("cp -r plain/global_step_2/huggingface reference", task.path()).code, 0);
  ASSERT_EQ(task.mortise(moved + "2 ref.path=reference").code, 0);
  ASSERT_EQ(run("cp other/global_step_4/huggingface/model.safetensors reference", task.path()).code, 0);
  const Outcome resumed = task.mortise(moved + "4 ref.path=reference");
  EXPECT_NE(resumed.code, 0);
  EXPECT_THAT(resumed.output, HasSubstr("ref.path: the weights of the reference"));
}

TEST(ObjectiveStages, AReferenceOfAnotherShapeIsRefused) {
  const TaskFolder task;
  const TaskFolder other("--tiny");
  for (const char* dry : {"--dry-run ", ""}) {
    const Outcome outcome = task.mortise("train run.toml actor.use_kl_loss=true " + std::string(dry) +
                                         "ref.path=" + (other.path() / "model").string());
    EXPECT_NE(outcome.code, 0);
    EXPECT_THAT(outcome.output, HasSubstr("the reference has other weights than the policy"));
  }
}

// A model that learnt to begin with a 7 teaches fresh weights, without a reward.
TEST(ObjectiveStages, ATeacherTeaches) {
  const TaskFolder task;
  ASSERT_EQ(task.mortise("train run.toml trainer.logger='[]'").code, 0);
  const std::string recipe =
      std::string(MORTISE_SOURCE_DIR) +
      "/configs/distill.toml model.path=model data.train_files=data/train.jsonl data.val_files=[] "
      "data.max_response_length=4 "
      "data.train_batch_size=16 actor.ppo_mini_batch_size=16 actor.optim.lr=3e-3 reward.0.use=regex "
      "reward.0.pattern='^7' reward.0.column=null trainer.validation_data_dir=null trainer.num_threads=2";
  for (const std::string& way : {recipe, std::string("run.toml reward.0.weight=0 teacher.advantage_coef=1")}) {
    const Outcome done = task.mortise("train " + way +
                                      " teacher.path=out/global_step_40/huggingface trainer.logger='[]' "
                                      "trainer.total_training_steps=30 trainer.default_local_dir=taught");
    ASSERT_EQ(done.code, 0) << done.output;
    EXPECT_GT(mean_score_of_last(task.path() / "taught/metrics.jsonl", 3, "rewards/regex/mean"), 0.7) << way;
    ASSERT_OK(remove_tree(default_env(), task.path() / "taught"));
  }
}

}  // namespace
}  // namespace mortise::test
