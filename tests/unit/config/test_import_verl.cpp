// verl's ppo_trainer: resolved YAML and Hydra overrides.
#include "import_support.h"

namespace mortise::test {
namespace {

RunConfig verl(std::string_view overrides) { return imported("verl", overrides, "run.sh"); }
std::string verl_error(std::string_view overrides) { return import_error("verl", overrides, "run.sh"); }

// GRPO, as every example of verl's begins.
constexpr std::string_view kGrpo = "algorithm.adv_estimator=grpo\n";
std::string grpo(std::string_view more) { return std::string(kGrpo) + std::string(more); }

TEST(ImportVerl, TheWholeFileWithItsDefaultsImports) {
  ASSERT_OK_AND_ASSIGN(const std::string text,
                       default_env().read_file(Path(MORTISE_SOURCE_DIR) / "tests/golden/import/verl_ppo_trainer.yaml"));
  ASSERT_OK_AND_ASSIGN(const ImportedConfig result, import_text("verl", text, "ppo_trainer.yaml"));
  EXPECT_THAT(result.warnings, ElementsAre());
  const RunConfig config = config_of(result.toml);
  EXPECT_EQ(config.model.path, "~/models/deepseek-llm-7b-chat");
  EXPECT_EQ(config.algorithm.adv_estimator, "gae");
  EXPECT_EQ(config.trainer.total_epochs, 30);
  EXPECT_EQ(config.trainer.default_local_dir, "checkpoints/verl_examples/gsm8k");
  EXPECT_EQ(config.actor.loss_agg_mode, "token-mean");
  EXPECT_EQ(config.actor.clip_ratio_low, 0.2);
  EXPECT_EQ(config.actor.clip_ratio_high, 0.2);
  EXPECT_EQ(config.actor.clip_ratio_c, 3.0);
  EXPECT_EQ(config.actor.optim.schedule_unit, "step");
  EXPECT_EQ(config.critic.cliprange_value, 0.5);
  EXPECT_EQ(config.critic.loss_agg_mode, "token-mean");
  EXPECT_THAT(result.toml, HasSubstr("# train_files = [\"train.jsonl\"]"));
  EXPECT_THAT(result.toml, HasSubstr("actor.fsdp_config.*"));

  // The same as what an empty file gives, but for what the file must name.
  const RunConfig empty = verl("");
  EXPECT_EQ(config.actor, empty.actor);
  EXPECT_EQ(config.algorithm, empty.algorithm);
  EXPECT_EQ(config.data, empty.data);
}

TEST(ImportVerl, AShellScriptOfItsExamples) {
  const RunConfig config = verl(R"(set -x
python3 -m verl.trainer.main_ppo \
    algorithm.adv_estimator=grpo \
    data.train_files=train.jsonl \
    data.train_batch_size=1024 \
    actor_rollout_ref.actor.optim.lr=1e-6 \
    actor_rollout_ref.model.use_remove_padding=True \
    actor_rollout_ref.actor.fsdp_config.param_offload=False \
    actor_rollout_ref.rollout.name=vllm \
    actor_rollout_ref.rollout.gpu_memory_utilization=0.6 \
    actor_rollout_ref.rollout.n=5 \
    trainer.logger='["console","wandb"]' \
    trainer.total_epochs=15 "$@")");
  EXPECT_EQ(config.rollout.name, "native");
  EXPECT_EQ(config.rollout.n, 5);
  EXPECT_EQ(config.trainer.total_epochs, 15);
  EXPECT_THAT(config.data.train_files, ElementsAre("train.jsonl"));
}

TEST(ImportVerl, LossesAndTheirParameters) {
  RunConfig config =
      verl(grpo("actor_rollout_ref.actor.policy_loss.loss_mode=gspo actor_rollout_ref.actor.clip_ratio_low=3e-4 "
                "actor_rollout_ref.actor.clip_ratio_high=4e-4"));
  EXPECT_EQ(config.actor.policy_loss.loss_mode, "gspo");
  EXPECT_EQ(config.actor.clip_ratio_low, 3e-4);
  config = verl(grpo("actor_rollout_ref.actor.policy_loss.loss_mode=clip-cov"));
  EXPECT_EQ(config.actor.policy_loss.loss_mode, "clip_cov");
  EXPECT_EQ(config.actor.policy_loss.params["clip_cov_ratio"], 2e-4);
  config = verl(grpo("actor_rollout_ref.actor.policy_loss.loss_mode=sapo actor_rollout_ref.actor.tau_neg=1.5"));
  EXPECT_EQ(config.actor.policy_loss.params["tau_neg"], 1.5);
  EXPECT_EQ(config.actor.loss_agg_mode, "seq-mean-token-mean") << "what verl forces";
  EXPECT_EQ(config.actor.loss_agg_rows, "all");
  config =
      verl(grpo("actor_rollout_ref.actor.policy_loss.loss_mode=dro actor_rollout_ref.actor.policy_loss.dro_beta=0.1"));
  EXPECT_EQ(config.actor.policy_loss.params, Json({{"dro_beta", 0.1}}));
  EXPECT_THAT(verl_error("actor_rollout_ref.actor.policy_loss.loss_mode=mine"), HasSubstr("no loss of verl's own"));
  EXPECT_THAT(verl_error("actor_rollout_ref.actor.policy_loss.loss_mode=bypass_mode"), HasSubstr("not supported"));
}

// Since version 0.9 verl reads loss_agg_mode with gspo; before, it took the mean over rows, as the paper does.
TEST(ImportVerl, GspoIsAggregatedAsTheFileSays) {
  const std::string gspo = grpo("actor_rollout_ref.actor.policy_loss.loss_mode=gspo ");
  ASSERT_OK_AND_ASSIGN(const ImportedConfig silent, import_text("verl", gspo, "run.sh"));
  EXPECT_EQ(config_of(silent.toml).actor.loss_agg_mode, "seq-mean-token-mean");
  ASSERT_EQ(silent.warnings.size(), 1U);
  EXPECT_THAT(silent.warnings[0], HasSubstr("before 0.9"));
  for (const std::string mode : {"seq-mean-token-mean", "token-mean"}) {
    const std::string named = gspo + "actor_rollout_ref.actor.loss_agg_mode=" + mode;
    ASSERT_OK_AND_ASSIGN(const ImportedConfig said, import_text("verl", named, "run.sh"));
    EXPECT_EQ(config_of(said.toml).actor.loss_agg_mode, mode);
    EXPECT_THAT(said.warnings, ElementsAre());
  }
}

// Hydra refuses a name that it does not know, and so does the import, also beside what is of an engine alone.
TEST(ImportVerl, MisspeltNamesAreErrors) {
  for (const char* name : {"actor_rollout_ref.rollout.temprature=0.7", "actor_rollout_ref.rollout.topp=0.9",
                           "actor_rollout_ref.ref.log_prob_batch=1", "critic.cliprange=0.2", "critic.optim.lrr=1e-5",
                           "reward.reward_kwarg=1", "reward_model.max_len=5"}) {
    EXPECT_THAT(verl_error(grpo(name)), HasSubstr("unknown setting ")) << name;
  }
  EXPECT_THAT(verl_error(grpo("actor_rollout_ref.rollout.temprature=0.7")), HasSubstr("temperature"));
}

TEST(ImportVerl, WhatTheCriticDoesOtherwiseIsRefused) {
  EXPECT_THAT(verl_error("critic.optim.clip_grad=0.5"), HasSubstr("differs from "));
  for (const char* setting : {"critic.optim.zero_indexed_step=False", "critic.optim.optimizer_impl=bitsandbytes",
                              "critic.model.override_config={dropout:1}", "critic.shuffle=True"})
    EXPECT_THAT(verl_error(setting), HasSubstr("is not supported: ")) << setting;
  EXPECT_EQ(verl("critic.optim.clip_grad=0.5 critic.grad_clip=0.5").critic.grad_clip, 0.5);
}

TEST(ImportVerl, EstimatorsAreThoseOfTheNewerVersion) {
  const auto params = [](const std::string& name) {
    return verl("algorithm.adv_estimator=" + name).algorithm.adv_params;
  };
  EXPECT_EQ(params("grpo"), Json::object());
  EXPECT_EQ(params("grpo_vectorized"), Json({{"min_variance", 0.0}}));
  EXPECT_EQ(params("reinforce_plus_plus"), Json({{"masked_tokens", "skip"}}));
  EXPECT_EQ(params("optimal_token_baseline"), Json({{"handle_zero_tail", true}}));
}

TEST(ImportVerl, RolloutCorrection) {
  const std::string table = "algorithm.rollout_correction.";
  const RunConfig decoupled = verl(grpo(table + "rollout_is=token " + table + "rollout_is_threshold=0.5_5.0 " + table +
                                        "rollout_rs=token_k1,seq_max_k2 " + table + "rollout_rs_threshold=0.5_2,0.1"));
  EXPECT_EQ(decoupled.algorithm.rollout_correction.rollout_is, "token");
  EXPECT_EQ(decoupled.algorithm.rollout_correction.rollout_is_threshold, "0.5_5.0");
  EXPECT_EQ(decoupled.algorithm.rollout_correction.rollout_rs, "token_k1,seq_max_k2");
  EXPECT_EQ(decoupled.actor.policy_loss.loss_mode, "vanilla");
  const std::string bypass = table + "bypass_mode=True " + table + "rollout_is=sequence " + table + "loss_type=";
  const std::string vanilla = " actor_rollout_ref.actor.policy_loss.loss_mode=vanilla";
  EXPECT_EQ(verl(grpo(bypass + "reinforce")).actor.policy_loss.loss_mode, "reinforce");
  EXPECT_EQ(verl(grpo(bypass + "reinforce" + vanilla)).actor.policy_loss.loss_mode, "reinforce");
}

TEST(ImportVerl, ClipRatioAloneChangesNothing) {
  const RunConfig config = verl(grpo("actor_rollout_ref.actor.clip_ratio=0.3"));
  EXPECT_EQ(config.actor.clip_ratio_low, 0.2);
  EXPECT_EQ(config.actor.clip_ratio_high, 0.2);
  EXPECT_EQ(verl(grpo("actor_rollout_ref.actor.clip_ratio=0.3 actor_rollout_ref.actor.clip_ratio_low=null"))
                .actor.clip_ratio_low,
            0.3);
}

TEST(ImportVerl, KlInLossAndReward) {
  RunConfig config = verl(grpo("actor_rollout_ref.actor.use_kl_loss=True actor_rollout_ref.actor.kl_loss_coef=0.01"));
  EXPECT_TRUE(config.actor.use_kl_loss);
  EXPECT_EQ(config.actor.kl_loss_coef, 0.01);
  EXPECT_EQ(config.actor.kl_loss_type, "low_var_kl");
  config =
      verl(grpo("algorithm.use_kl_in_reward=True algorithm.kl_ctrl.type=adaptive algorithm.kl_ctrl.target_kl=0.05"));
  EXPECT_TRUE(config.algorithm.use_kl_in_reward);
  EXPECT_EQ(config.algorithm.kl_ctrl.target_kl, 0.05);
  EXPECT_EQ(config.algorithm.kl_ctrl.horizon, 10000.0);
  config = verl(grpo("actor_rollout_ref.actor.use_kl_loss=True actor_rollout_ref.actor.kl_loss_type=full"));
  EXPECT_EQ(config.actor.kl_loss_type, "full");
  EXPECT_THAT(verl_error(grpo("algorithm.use_kl_in_reward=True algorithm.kl_penalty=full")),
              HasSubstr("'full' is not supported"));
}

// verl forces the aggregation of these losses alone: its KL and entropy terms keep loss_agg_mode.
TEST(ImportVerl, TermsOfAnotherAggregationThanTheLossAreRefused) {
  const std::string actor = "actor_rollout_ref.actor.";
  for (const std::string loss : {"sapo", "geo_mean"}) {
    const std::string mode = actor + "policy_loss.loss_mode=" + loss + " ";
    for (const std::string term : {"use_kl_loss=True", "entropy_coeff=0.01"}) {
      EXPECT_THAT(verl_error(grpo(mode + actor + term)),
                  HasSubstr("with loss_mode " + loss + " and loss_agg_mode token-mean is not supported"));
      EXPECT_EQ(verl(grpo(mode + actor + term + " " + actor + "loss_agg_mode=seq-mean-token-mean")).actor.loss_agg_mode,
                "seq-mean-token-mean");
    }
    EXPECT_EQ(verl(grpo(mode + actor + "use_kl_loss=True " + actor + "kl_loss_coef=0")).actor.loss_agg_mode,
              "seq-mean-token-mean")
        << "the KL is measured only";
  }
  EXPECT_TRUE(verl(grpo(actor + "use_kl_loss=True")).actor.use_kl_loss) << "vanilla reads loss_agg_mode";
}

TEST(ImportVerl, EstimatorsBatchesAndSchedule) {
  RunConfig config = verl("algorithm.adv_estimator=reinforce_plus_plus algorithm.gamma=0.9");
  EXPECT_EQ(config.algorithm.gamma, 0.9);
  config = verl(
      grpo("algorithm.norm_adv_by_std_in_grpo=False actor_rollout_ref.actor.loss_agg_mode=seq-mean-token-sum-norm"));
  EXPECT_FALSE(config.algorithm.norm_adv_by_std_in_grpo);
  EXPECT_TRUE(config.actor.loss_scale_by_rows);
  config = verl("algorithm.adv_estimator=grpo_vectorized algorithm.norm_adv_by_std_in_grpo=False");
  EXPECT_TRUE(config.algorithm.norm_adv_by_std_in_grpo) << "which verl does not hand to it";
  config = verl(
      grpo("data.train_batch_size=64 actor_rollout_ref.actor.ppo_mini_batch_size=16 actor_rollout_ref.rollout.n=5 "
           "actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=4 actor_rollout_ref.actor.optim.warmup_style=cosine "
           "actor_rollout_ref.actor.optim.min_lr_ratio=0.1 trainer.total_training_steps=100 "
           "actor_rollout_ref.actor.optim.lr_warmup_steps_ratio=0.05"));
  EXPECT_EQ(config.rollout.n, 5);
  EXPECT_EQ(config.actor.ppo_micro_batch_size_per_gpu, 4);
  EXPECT_EQ(config.actor.optim.lr_scheduler_type, "cosine");
  EXPECT_EQ(config.actor.optim.min_lr_ratio, 0.1);
  EXPECT_EQ(config.actor.optim.lr_warmup_steps_ratio, 0.05);
  EXPECT_EQ(config.trainer.total_training_steps, 100);
  EXPECT_THAT(verl_error(grpo("data.train_batch_size=64 actor_rollout_ref.actor.ppo_mini_batch_size=24")),
              HasSubstr("run.sh:2: actor_rollout_ref.actor.ppo_mini_batch_size: "));
  EXPECT_THAT(verl_error(grpo("data.gen_batch_size=64")), HasSubstr("differs from data.train_batch_size"));
  EXPECT_THAT(verl_error("algorithm.adv_estimator=mine"), HasSubstr("none of verl's own"));
}

TEST(ImportVerl, RewardsValidationAndFiles) {
  RunConfig config = verl(grpo(
      "custom_reward_function.path=my_reward.py custom_reward_function.name=score data.train_files=[a.jsonl,b.jsonl] "
      "data.val_files=c.jsonl trainer.test_freq=5 actor_rollout_ref.rollout.val_kwargs.do_sample=True "
      "actor_rollout_ref.rollout.val_kwargs.temperature=0.6 actor_rollout_ref.rollout.val_kwargs.n=4 "
      "trainer.logger=[console,wandb] actor_rollout_ref.model.path=/models/qwen"));
  ASSERT_EQ(config.reward.size(), 1U);
  EXPECT_EQ(config.reward[0].use, "python");
  EXPECT_EQ(config.reward[0].params, Json({{"path", "my_reward.py"}, {"function", "score"}, {"style", "verl"}}));
  EXPECT_THAT(config.data.train_files, ElementsAre("a.jsonl", "b.jsonl"));
  EXPECT_EQ(config.trainer.test_freq, 5);
  EXPECT_EQ(config.rollout.val_kwargs.temperature, 0.6);
  EXPECT_THAT(config.trainer.logger, ElementsAre("console"));
  EXPECT_EQ(config.model.path, "/models/qwen");

  config =
      verl(grpo("reward_model.reward_manager=dapo +reward_model.reward_kwargs.overlong_buffer_cfg.enable=True "
                "+reward_model.reward_kwargs.overlong_buffer_cfg.len=100 "
                "+reward_model.reward_kwargs.overlong_buffer_cfg.penalty_factor=0.5 "
                "+reward_model.reward_kwargs.max_resp_len=400"));
  ASSERT_EQ(config.reward.size(), 2U);
  EXPECT_EQ(config.reward[1].use, "default_compute_score");
  EXPECT_EQ(config.reward[0].params, Json({{"limit", 400}, {"buffer", 100}, {"penalty", -0.5}}));
}

// The model's score stands in place of the scorers, whatever manager is named.
TEST(ImportVerl, ARewardModelTakesThePlaceOfTheScorers) {
  RunConfig config =
      verl(grpo("reward_model.enable=True reward_model.model.path=/models/rm reward_model.reward_manager=dapo "
                "reward_model.max_length=2048"));
  ASSERT_EQ(config.reward.size(), 1U);
  EXPECT_EQ(config.reward[0].use, "reward_model");
  EXPECT_EQ(config.reward[0].params, Json({{"model", "/models/rm"}, {"max_length", 2048}, {"truncation", "right"}}));
  config =
      verl(grpo("reward_model.enable=True reward_model.model.path=/models/rm reward_model.max_length=2048 "
                "reward_model.model.input_tokenizer=null"));
  EXPECT_EQ(config.reward.at(0).params, Json({{"model", "/models/rm"}, {"plain_text", true}}));
  config = verl(grpo("reward.reward_model.enable=True reward.reward_model.model_path=/models/rm"));
  ASSERT_EQ(config.reward.size(), 1U);
  EXPECT_EQ(config.reward[0].params, Json({{"model", "/models/rm"}}));
  config = verl(grpo("reward_model.enable=False reward_model.model.path=/models/rm"));
  EXPECT_EQ(config.reward.at(0).use, "default_compute_score");
  EXPECT_THAT(verl_error(grpo("reward_model.enable=True")), HasSubstr("'reward_model.model.path' is not given"));
  EXPECT_THAT(verl_error(grpo("reward_model.enable=True reward_model.model.path=/models/rm "
                              "custom_reward_function.path=my_reward.py")),
              HasSubstr("which of the two counts differs"));
}

TEST(ImportVerl, WhatWouldChangeTheNumbersIsRefused) {
  for (const char* setting :
       {"actor_rollout_ref.rollout.multi_turn.enable=True", "actor_rollout_ref.rollout.quantization=fp8",
        "actor_rollout_ref.actor.optim.optimizer=SGD", "algorithm.use_pf_ppo=True", "distillation.enabled=True",
        "trainer.v1.trainer_mode=colocate_async", "actor_rollout_ref.actor.qat.enable=True",
        "actor_rollout_ref.rollout.do_sample=False", "actor_rollout_ref.model.external_lib=my.lib"}) {
    EXPECT_THAT(verl_error(grpo(setting)), HasSubstr("is not supported: ")) << setting;
  }
  EXPECT_THAT(verl_error(grpo("actor_rollout_ref.model.override_config.rope_theta=1")),
              HasSubstr("would change the model"));
  EXPECT_THAT(import_error("verl", "trainer: {total_epochs: \"${oc.env:EPOCHS}\"}"), HasSubstr("is not resolved"));
}

}  // namespace
}  // namespace mortise::test
