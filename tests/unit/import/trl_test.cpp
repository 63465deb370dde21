// TRL's GRPOConfig: what each setting becomes, and the settings of the replayed runs.
#include "config/check.h"
#include "config/fields.h"
#include "foundation/base/choice.h"
#include "foundation/base/text.h"
#include "foundation/formats/jsonl.h"
#include "import/frameworks.h"
#include "import_support.h"

namespace mortise::test {
namespace {

RunConfig trl(std::string_view text, int64_t num_processes = 1) {
  return imported("trl", text, "grpo.yaml", num_processes);
}

TEST(ImportTrl, DefaultsAreTrls) {
  const RunConfig config = trl("");
  EXPECT_EQ(config.data.train_batch_size, 1) << "8 completions, 8 for each prompt";
  EXPECT_EQ(config.actor.ppo_mini_batch_size, 1);
  EXPECT_EQ(config.actor.ppo_micro_batch_size_per_gpu, 8);
  EXPECT_EQ(config.rollout.n, 8);
  EXPECT_EQ(config.data.max_response_length, 512);
  EXPECT_EQ(config.rollout.temperature, 1.0);
  EXPECT_EQ(config.actor.policy_loss.loss_mode, "vanilla");
  EXPECT_EQ(config.actor.clip_ratio_low, 0.2);
  EXPECT_EQ(config.actor.clip_ratio_high, 0.2);
  EXPECT_EQ(config.actor.clip_ratio_c, 0.0) << "no dual clip";
  EXPECT_EQ(choice_name(config.actor.loss_agg_mode), "token-mean");
  EXPECT_FALSE(config.actor.use_kl_loss);
  EXPECT_EQ(config.algorithm.adv_estimator, "grpo");
  EXPECT_EQ(config.algorithm.adv_params, Json({{"epsilon", 1e-4}}));
  EXPECT_EQ(config.actor.optim.lr, 1e-6);
  EXPECT_EQ(config.actor.optim.weight_decay, 0.0);
  EXPECT_EQ(choice_name(config.actor.optim.lr_scheduler_type), "linear");
  EXPECT_EQ(choice_name(config.actor.optim.schedule_unit), "update");
  EXPECT_EQ(config.actor.grad_clip, 1.0);
  EXPECT_EQ(config.trainer.total_epochs, 3);
  EXPECT_FALSE(config.trainer.val_before_train);
  EXPECT_FALSE(config.actor.router_aux_loss_coef.has_value()) << "the model's own";
  EXPECT_EQ(trl("router_aux_loss_coef: 0.02").actor.router_aux_loss_coef, 0.02);
}

TEST(ImportTrl, ServersBecomeTheBackendAndItsCorrection) {
  const auto correction = [](std::string_view more) {
    return trl("use_vllm: true\nvllm_mode: server\n" + std::string(more)).algorithm.rollout_correction;
  };
  RunConfig config =
      trl("use_vllm: true\nvllm_mode: server\nvllm_server_host: gpu1\nvllm_server_port: 9000\n"
          "vllm_server_timeout: 30");
  EXPECT_EQ(config.rollout.name, "vllm");
  EXPECT_EQ(config.rollout.params, Json({{"url", "http://gpu1:9000"}, {"start_limit", 30.0}}));
  ASSERT_TRUE(config.algorithm.rollout_correction.rollout_is) << "TRL corrects by default";
  EXPECT_EQ(choice_name(*config.algorithm.rollout_correction.rollout_is), "sequence");
  EXPECT_EQ(choice_name(config.algorithm.rollout_correction.rollout_is_outside), "mask");
  EXPECT_EQ(config.algorithm.rollout_correction.rollout_is_threshold, "3");
  config = trl("use_vllm: true\nvllm_mode: server");
  EXPECT_EQ(config.rollout.params, Json({{"url", "http://127.0.0.1:8000"}}));
  EXPECT_EQ(config.rollout.val_engine, ValEngine::kNative) << "TRL does not validate here";
  config = trl("use_vllm: true\nvllm_mode: server\neval_strategy: steps\neval_steps: 50");
  EXPECT_EQ(config.rollout.val_engine, ValEngine::kRollout) << "TRL validates on the servers";
  EXPECT_EQ(correction("vllm_importance_sampling_mode: token_truncate\nvllm_importance_sampling_clip_min: 0.5")
                .rollout_is_threshold,
            "0.5_3");
  EXPECT_EQ(correction("vllm_importance_sampling_clip_max: null\nvllm_importance_sampling_clip_min: 0.5")
                .rollout_is_threshold,
            "0.5_1e300");
  EXPECT_EQ(correction("vllm_importance_sampling_clip_max: null").rollout_is_threshold, "1e300") << "nothing is masked";
  EXPECT_THAT(import_error("trl",
                           "use_vllm: true\nvllm_mode: server\nvllm_importance_sampling_mode: token_truncate\n"
                           "vllm_importance_sampling_clip_max: null"),
              HasSubstr("token_truncate needs one of clip_min and clip_max"));
  EXPECT_FALSE(correction("vllm_importance_sampling_correction: false").rollout_is);
  EXPECT_THAT(import_error("trl", "use_vllm: true\nvllm_mode: server\nvllm_importance_sampling_mode: row"),
              HasSubstr("token_truncate, token_mask"));
  config = trl("use_vllm: true\nvllm_mode: colocate\nvllm_server_port: 9000");
  EXPECT_EQ(config.rollout.name, "native") << "there the trainer samples itself, as here";
  EXPECT_FALSE(config.algorithm.rollout_correction.rollout_is);
}

TEST(ImportTrl, BatchesAreCountedAsTrlCountsThem) {
  const std::string text =
      "per_device_train_batch_size: 4\ngradient_accumulation_steps: 2\nsteps_per_generation: 8\nnum_generations: 8\n"
      "num_iterations: 2\nmax_steps: 24\n";
  const RunConfig config = trl(text, 4);
  EXPECT_EQ(config.data.train_batch_size, 4 * 4 * 8 / 8);
  EXPECT_EQ(config.actor.ppo_mini_batch_size, 4 * 4 * 2 / 8);
  EXPECT_EQ(config.actor.ppo_epochs, 2);
  EXPECT_EQ(config.trainer.total_training_steps, 24 / (8 / 2 * 2));
  EXPECT_EQ(config.trainer.save_freq, 63) << "500 updates, 8 in a step";
  EXPECT_EQ(trl("generation_batch_size: 64").data.train_batch_size, 8);
  EXPECT_EQ(trl("gradient_accumulation_steps: 4").data.train_batch_size, 4);
  EXPECT_EQ(trl("num_train_epochs: 1.5").trainer.total_epochs, 1.5);
  const RunConfig partial = trl("per_device_train_batch_size: 4\nsteps_per_generation: 2");
  EXPECT_EQ(partial.data.train_batch_size, 1);
  EXPECT_EQ(partial.actor.rows_per_update, 4) << "half a group of 8";
  EXPECT_TRUE(partial.actor.shuffle);
  EXPECT_FALSE(config.actor.rows_per_update.has_value());
  EXPECT_FALSE(config.actor.carry_rows);
  // The run ends inside a step.
  for (const char* inside : {"gradient_accumulation_steps: 2\nsteps_per_generation: 2\nnum_iterations: 3\nmax_steps: 5",
                             "num_iterations: 2\nmax_steps: 5"}) {
    EXPECT_EQ(trl(inside).trainer.total_training_updates, 5);
    EXPECT_FALSE(trl(inside).trainer.total_training_steps.has_value());
  }
  // Whole groups in each update: the import's comment says how to have TRL's order.
  EXPECT_THAT(imported_toml("trl", text, "peer.yaml", 4),
              HasSubstr("actor.rows_per_update = 32 and actor.shuffle = true; here each of num_iterations has a new "
                        "order"));

  const auto error = [](std::string_view more) { return import_error("trl", more); };
  EXPECT_THAT(error("generation_batch_size: 64\nsteps_per_generation: 8"), HasSubstr("both given"));
  EXPECT_THAT(error("generation_batch_size: 60"), HasSubstr("not a multiple of the rows of a micro-step (8)"));
  EXPECT_THAT(error("num_generations: 3"), HasSubstr("does not hold whole groups of 3"));
  EXPECT_THAT(error("num_generations: 1"), HasSubstr("nothing to compare"));
  EXPECT_THAT(error("num_train_epochs: 0"), HasSubstr("set it above 0 and at most 1e9, or give max_steps"));
  EXPECT_THAT(error("per_device_train_batch_size: 1.5"), HasSubstr("must be an integer"));
}

// No weights change between generation batches of one update, nor between passes over them.
TEST(ImportTrl, AnUpdateOverSeveralGenerationBatchesIsOneBatch) {
  for (const char* text :
       {"gradient_accumulation_steps: 4\nsteps_per_generation: 2\nmax_steps: 5",
        "gradient_accumulation_steps: 8\nsteps_per_generation: 2\nnum_iterations: 2\nmax_steps: 5"}) {
    const RunConfig config = trl(text);
    EXPECT_EQ(config.data.train_batch_size, 4) << text;  // 4 micro-steps of 8 completions
    EXPECT_EQ(config.actor.ppo_mini_batch_size, 4) << text;
    EXPECT_EQ(config.actor.ppo_epochs, 1) << text;
    EXPECT_EQ(config.trainer.total_training_steps, 5) << text;
  }
  const std::string several = "gradient_accumulation_steps: 4\nsteps_per_generation: 2\n";
  EXPECT_THAT(import_error("trl", several + "per_device_train_batch_size: 3"),
              HasSubstr("a generation batch of 6 completions of 1 process does not hold whole groups of 8"));
  const std::string in_json = R"({"gradient_accumulation_steps": 4, "steps_per_generation": 2, "scale_rewards": )";
  EXPECT_EQ(imported("trl", in_json + "false}", "grpo.json").algorithm.adv_estimator, "dr_grpo");
  EXPECT_EQ(imported("trl", in_json + "true}", "grpo.json").algorithm.adv_estimator, "grpo");
}

// Neither of a generation batch and an update divides the other.
TEST(ImportTrl, UpdatesFromTwoGenerationBatchesCarryRows) {
  const std::string crossing = "loss_type: grpo\ngradient_accumulation_steps: 2\nsteps_per_generation: 3\n";
  const RunConfig config = trl(crossing + "max_steps: 7\nsave_steps: 3\neval_strategy: steps\neval_steps: 4");
  EXPECT_EQ(config.data.train_batch_size, 3) << "3 micro-steps of 8 completions";
  EXPECT_EQ(config.actor.ppo_mini_batch_size, 2);
  EXPECT_TRUE(config.actor.carry_rows);
  EXPECT_EQ(config.trainer.total_training_updates, 7);
  EXPECT_EQ(config.trainer.save_freq, 2) << "3 updates take 2 steps of 1.5";
  EXPECT_EQ(config.trainer.test_freq, 3) << "4 updates take 2.7 steps";
  const RunConfig large =
      trl("gradient_accumulation_steps: 5\nsteps_per_generation: 2\nper_device_train_batch_size: 4");
  EXPECT_EQ(large.data.train_batch_size, 1);
  EXPECT_EQ(large.actor.rows_per_update, 20) << "not whole groups of 8";
  EXPECT_TRUE(large.actor.carry_rows && large.actor.shuffle);
  EXPECT_EQ(large.trainer.total_epochs, 3);
  // An update may end inside a pass, or have several passes over a batch.
  EXPECT_TRUE(trl(crossing + "num_iterations: 2").actor.carry_rows);
  EXPECT_TRUE(trl("gradient_accumulation_steps: 4\nsteps_per_generation: 2\nnum_iterations: 3").actor.carry_rows);
  const RefConfig ref = trl(crossing + "beta: 0.1\nsync_ref_model: true\nref_model_sync_steps: 3").ref;
  EXPECT_EQ(ref.sync_steps, 3);
  EXPECT_EQ(ref.sync_unit, ScheduleUnit::kUpdate) << "generation batches have 1 or 2 updates";
  const auto dapo = import_text("trl", "gradient_accumulation_steps: 2\nsteps_per_generation: 3\n");
  ASSERT_TRUE(dapo.ok());
  EXPECT_THAT(dapo->warnings, ElementsAre(HasSubstr("an update may hold rows of two generation batches")));
}

// TRL takes the micro-steps 0 1 0 1 of a generation batch in each update. The second pass repeats the gradient of the first.
TEST(ImportTrl, PassesOverABatchThatLieInOneUpdateAreOnePass) {
  const std::string two = "gradient_accumulation_steps: 4\nsteps_per_generation: 2\n";
  const RunConfig config = trl(two + "num_iterations: 6\nmax_steps: 12\nscale_rewards: batch");
  EXPECT_EQ(config.data.train_batch_size, 2) << "2 micro-steps of 8 completions";
  EXPECT_EQ(config.actor.ppo_mini_batch_size, 2);
  EXPECT_EQ(config.actor.ppo_epochs, 3) << "6 passes, 2 in each update";
  EXPECT_EQ(config.trainer.total_training_steps, 4);
}

// Their means and deviations would be those of the joined batch.
TEST(ImportTrl, GenerationBatchesThatAreNormalizedEachStayApart) {
  const std::string several = "gradient_accumulation_steps: 4\nsteps_per_generation: 2\nloss_type: grpo\n";
  for (const std::string each : {"scale_rewards: batch", "multi_objective_aggregation: normalize_then_sum",
                                 "scale_rewards: batch\nnum_iterations: 1\nmax_steps: 3"}) {
    const RunConfig config = trl(several + each);
    EXPECT_EQ(config.data.train_batch_size, 2) << each;
    EXPECT_EQ(config.actor.ppo_mini_batch_size, 4) << each;
    EXPECT_TRUE(config.actor.carry_rows) << each;
  }
  EXPECT_EQ(trl("gradient_accumulation_steps: 4\ngeneration_batch_size: 16\nscale_rewards: batch\nmax_steps: 3")
                .trainer.total_training_updates,
            3);
  // Both passes over the one batch of an update.
  const RunConfig one =
      trl("gradient_accumulation_steps: 4\nsteps_per_generation: 2\nnum_iterations: 2\n"
          "max_steps: 5\nscale_rewards: batch");
  EXPECT_EQ(one.data.train_batch_size, 2);
  EXPECT_EQ(one.algorithm.adv_params["std"], "batch");
}

TEST(ImportTrl, DivisorsOfSeveralGenerationBatchesAreTold) {
  const auto warnings_of = [](const std::string& text) {
    const auto result = import_text("trl", text);
    return result ? result->warnings : std::vector<std::string>{result.error().to_string()};
  };
  const std::string several = "gradient_accumulation_steps: 4\nsteps_per_generation: 2\n";
  EXPECT_THAT(warnings_of(several), ElementsAre(HasSubstr("an update has 2 generation batches")));  // dapo
  for (const std::string type : {"dapo", "cispo", "vespo"})
    EXPECT_THAT(warnings_of(several + "loss_type: " + type), ElementsAre(HasSubstr("divided by its own tokens")))
        << type;
  for (const std::string type : {"grpo", "bnpo", "dr_grpo", "sapo"})
    EXPECT_THAT(warnings_of(several + "loss_type: " + type), ElementsAre()) << type;
  EXPECT_THAT(warnings_of("gradient_accumulation_steps: 4\nsteps_per_generation: 2\nnum_iterations: 2"), ElementsAre());
  EXPECT_THAT(warnings_of("gradient_accumulation_steps: 4"), ElementsAre());
}

TEST(ImportTrl, AReplayBuffer) {
  EXPECT_FALSE(trl("").algorithm.replay_buffer.enable);
  EXPECT_FALSE(trl("replay_buffer_size: 0").algorithm.replay_buffer.enable);
  const ReplayBufferConfig buffer = trl("replay_buffer_size: 32").algorithm.replay_buffer;
  EXPECT_EQ(buffer, (ReplayBufferConfig{true, 32, 0}));
}

TEST(ImportTrl, EveryLossType) {
  struct Case {
    const char* type;
    const char* loss;
    const char* aggregation;
  };
  for (const Case& c : {Case{"grpo", "vanilla", "seq-mean-token-mean"}, Case{"bnpo", "vanilla", "token-mean"},
                        Case{"dapo", "vanilla", "token-mean"}, Case{"dr_grpo", "vanilla", "seq-mean-token-sum-norm"},
                        Case{"cispo", "cispo", "token-mean"}, Case{"sapo", "sapo", "seq-mean-token-mean"},
                        Case{"vespo", "vespo", "token-mean"}, Case{"luspo", "vanilla", "seq-mean-token-sum"}}) {
    SCOPED_TRACE(c.type);
    const RunConfig config = trl("loss_type: " + std::string(c.type));
    EXPECT_EQ(config.actor.policy_loss.loss_mode, c.loss);
    EXPECT_EQ(choice_name(config.actor.loss_agg_mode), c.aggregation);
    EXPECT_EQ(choice_name(config.actor.loss_agg_rows), std::string(c.aggregation) == "token-mean" ? "nonempty" : "all");
  }
  EXPECT_EQ(trl("loss_type: cispo\nepsilon_high: 5.0").actor.policy_loss.params, Json({{"cap", 5.0}}));
  EXPECT_EQ(trl("loss_type: cispo\nepsilon: 0.3").actor.policy_loss.params, Json({{"cap", 0.3}}));
  EXPECT_EQ(trl("loss_type: sapo\nsapo_temperature_neg: 2").actor.policy_loss.params,
            Json({{"tau_pos", 1.0}, {"tau_neg", 2.0}}));
  EXPECT_EQ(trl("loss_type: vespo\nvespo_k_neg: 4").actor.policy_loss.params["vespo_k_neg"], 4.0);
  EXPECT_THAT(import_error("trl", "loss_type: ppo"), HasSubstr("'ppo' is not known"));
}

TEST(ImportTrl, SequenceLevelAndClips) {
  RunConfig config = trl("importance_sampling_level: sequence\nepsilon: 3e-4\nepsilon_high: 4e-4\ndelta: 1.5");
  EXPECT_EQ(config.actor.policy_loss.loss_mode, "gspo");
  EXPECT_EQ(config.actor.policy_loss.params, Json({{"delta", 1.5}, {"gradient", "row"}, {"max_log_ratio", kNoCap}}));
  EXPECT_EQ(config.actor.clip_ratio_low, 3e-4);
  EXPECT_EQ(config.actor.clip_ratio_high, 4e-4);
  config = trl("importance_sampling_level: sequence\nloss_type: luspo");
  EXPECT_EQ(config.actor.policy_loss.loss_mode, "luspo");
  EXPECT_EQ(trl("delta: 1.5").actor.policy_loss.params, Json({{"delta", 1.5}}));
  EXPECT_EQ(trl("epsilon_high: 0.28").actor.clip_ratio_low, 0.2);
  for (const std::string type : {"cispo", "sapo"})
    EXPECT_EQ(trl("importance_sampling_level: sequence\nloss_type: " + type).actor.policy_loss.loss_mode,
              type + "_sequence");
  EXPECT_THAT(import_error("trl", "importance_sampling_level: word"), HasSubstr("must be token or sequence"));
}

TEST(ImportTrl, KlIsUnclampedAndCorrectedUnlessToldOtherwise) {
  RunConfig config = trl("beta: 0.04");
  EXPECT_TRUE(config.actor.use_kl_loss);
  EXPECT_EQ(config.actor.kl_loss_coef, 0.04);
  EXPECT_EQ(config.actor.kl_loss_type, "k3_ratio") << "TRL 1.16 multiplies by the ratio";
  EXPECT_EQ(config.actor.kl_params, Json({{"max_log_ratio", kNoCap}, {"max_kl", kNoCap}}));
  config = trl("beta: 0.04\nuse_bias_correction_kl: false");
  EXPECT_EQ(config.actor.kl_loss_type, "low_var_kl");
  config = trl("beta: 0.04\nimportance_sampling_level: sequence");
  EXPECT_EQ(config.actor.policy_loss.loss_mode, "gspo");
  EXPECT_EQ(config.actor.kl_loss_type, "k3_row_ratio") << "with the ratio of the row";
  config = trl("beta: 0.04\nimportance_sampling_level: sequence\nuse_bias_correction_kl: false");
  EXPECT_EQ(config.actor.kl_loss_type, "low_var_kl");
}

TEST(ImportTrl, TheStockAdapter) {
  const RunConfig config = trl("use_peft: true");
  EXPECT_EQ(config.model.lora_rank, 16);
  EXPECT_EQ(config.model.lora_alpha, 32.0);
  EXPECT_EQ(config.model.lora_dropout, 0.05);
  EXPECT_EQ(trl("use_peft: true\nlora_dropout: 0").model.lora_dropout, 0.0);
  EXPECT_FALSE(config.model.use_rslora);
  EXPECT_TRUE(trl("use_peft: true\nuse_rslora: true").model.use_rslora);
  EXPECT_TRUE(trl("use_peft: true\nuse_dora: true").model.use_dora);
  EXPECT_EQ(trl("use_peft: true\nlora_modules_to_save: [lm_head]").model.modules_to_save,
            std::vector<std::string>{"lm_head"});
  EXPECT_EQ(trl("use_peft: true\nlora_target_parameters: [mlp.experts.down_proj]").model.target_parameters,
            std::vector<std::string>{"mlp.experts.down_proj"});
}

TEST(ImportTrl, EntropyIsAMeanOverTokens) {
  EXPECT_EQ(trl("entropy_coef: 0.01").actor.entropy_coeff, 0.01);
  EXPECT_TRUE(trl("entropy_coef: 0.01").actor.entropy_agg_mode.is_auto()) << "as dapo itself";
  EXPECT_TRUE(trl("loss_type: grpo").actor.entropy_agg_mode.is_auto()) << "there is no bonus";
  for (const std::string bonus : {"entropy_coef: 0.01\n", "use_adaptive_entropy: true\n"}) {
    for (const char* other : {"loss_type: grpo", "loss_type: dr_grpo", "top_entropy_quantile: 0.2"})
      EXPECT_EQ(choice_name(trl(bonus + other).actor.entropy_agg_mode), "token-mean") << bonus << other;
  }
}

TEST(ImportTrl, Advantages) {
  EXPECT_EQ(trl("scale_rewards: batch").algorithm.adv_params, Json({{"epsilon", 1e-4}, {"std", "batch"}}));
  EXPECT_EQ(trl("scale_rewards: none").algorithm.adv_estimator, "dr_grpo");
  EXPECT_EQ(trl("scale_rewards: false").algorithm.adv_estimator, "dr_grpo");
  EXPECT_EQ(trl("scale_rewards: true").algorithm.adv_estimator, "grpo");
  const RunConfig config = trl("multi_objective_aggregation: normalize_then_sum");
  EXPECT_EQ(config.algorithm.adv_estimator, "gdpo");
  EXPECT_EQ(config.algorithm.adv_params, Json({{"epsilon", 1e-4}, {"whiten", "rows"}, {"whiten_epsilon", 1e-4}}));
  EXPECT_THAT(import_error("trl", "scale_rewards: rows"), HasSubstr("use one of: group, batch, none"));
}

TEST(ImportTrl, SchedulesAndWarmups) {
  RunConfig config = trl("lr_scheduler_type: cosine\nwarmup_steps: 10\nmax_steps: 100");
  EXPECT_EQ(choice_name(config.actor.optim.lr_scheduler_type), "cosine");
  EXPECT_EQ(config.actor.optim.lr_warmup_steps, 10);
  config = trl("warmup_steps: 0.1\nmax_steps: 15");
  EXPECT_EQ(config.actor.optim.lr_warmup_steps, 2) << "rounded up";
  EXPECT_EQ(trl("warmup_ratio: 0.1").actor.optim.lr_warmup_steps_ratio, 0.1) << "the older name";
  EXPECT_EQ(trl("lr_scheduler_type: constant\nwarmup_steps: 5").actor.optim.lr_warmup_steps, -1)
      << "transformers ignores it";
  EXPECT_EQ(trl("lr_scheduler_type: constant_with_warmup\nwarmup_steps: 5").actor.optim.lr_warmup_steps, 5);
  config = trl("lr_scheduler_type: cosine_with_min_lr\nlearning_rate: 1e-5\nlr_scheduler_kwargs: {min_lr: 1e-6}");
  EXPECT_DOUBLE_EQ(config.actor.optim.min_lr_ratio, 0.1);
  config = trl("lr_scheduler_type: polynomial\nlearning_rate: 1e-5\nlr_scheduler_kwargs: {power: 2}");
  EXPECT_EQ(config.actor.optim.power, 2.0);
  EXPECT_DOUBLE_EQ(config.actor.optim.min_lr_ratio, 0.01) << "transformers' lr_end is 1e-7";
  config = trl("lr_scheduler_type: polynomial\nlearning_rate: 1e-5\nlr_scheduler_kwargs: {lr_end: 0.0}");
  EXPECT_EQ(config.actor.optim.min_lr_ratio, 0.0);
  EXPECT_EQ(trl("lr_scheduler_type: cosine_with_restarts").actor.optim.num_cycles, 1.0);
  EXPECT_EQ(trl("lr_scheduler_type: inverse_sqrt\nlr_scheduler_kwargs: {timescale: 30}").actor.optim.timescale, 30);
  config = trl("lr_scheduler_type: warmup_stable_decay\nlr_scheduler_kwargs: {num_decay_steps: 9, decay_type: 1-sqrt}");
  EXPECT_EQ(config.actor.optim.lr_wsd_decay_steps, 9);
  EXPECT_EQ(choice_name(config.actor.optim.lr_wsd_decay_style), "minus_sqrt");
  EXPECT_THAT(import_error("trl", "lr_scheduler_type: warmup_stable_decay"), HasSubstr("needs lr_scheduler_kwargs"));
  config =
      trl("lr_scheduler_type: warmup_stable_decay\nwarmup_steps: 5\nlr_scheduler_kwargs: {num_decay_steps: 9, "
          "num_stable_steps: 20, warmup_type: cosine, min_lr_ratio: 0.1, num_cycles: 1.5}");
  EXPECT_EQ(config.actor.optim.lr_warmup_style, LrWarmup::kCosine);
  EXPECT_EQ(config.actor.optim.lr_decay_steps, 34);
  EXPECT_EQ(config.actor.optim.lr_warmup_init_ratio, 0.1) << "transformers' warm-up begins at the floor";
  EXPECT_EQ(config.actor.optim.num_cycles, 1.5);
  EXPECT_THAT(import_error("trl",
                           "lr_scheduler_type: warmup_stable_decay\n"
                           "lr_scheduler_kwargs: {num_decay_steps: 9, warmup_type: steps}"),
              HasSubstr("lr_scheduler_kwargs.warmup_type"));
  config =
      trl("lr_scheduler_type: cosine_warmup_with_min_lr\nlr_scheduler_kwargs: {min_lr_rate: 0.1, warmup_lr_rate: 0.2}");
  EXPECT_EQ(config.actor.optim.lr_scheduler_type, LrSchedule::kCosineWarmupWithMinLr);
  EXPECT_EQ(config.actor.optim.lr_warmup_init_ratio, 0.2);
  EXPECT_THAT(import_error("trl", "lr_scheduler_type: cosine_warmup_with_min_lr"), HasSubstr("min_lr_rate"));
  EXPECT_THAT(import_error("trl", "lr_scheduler_type: step"), HasSubstr("'step' is not supported"));
  EXPECT_THAT(import_error("trl", "lr_scheduler_kwargs: {power: 2}"), HasSubstr("lr_scheduler_kwargs.power"));
}

TEST(ImportTrl, SchedulesThatFollowValidations) {
  const std::string eval = "eval_strategy: steps\nmetric_for_best_model: reward\n";
  RunConfig config =
      trl(eval +
          "lr_scheduler_type: reduce_lr_on_plateau\nwarmup_steps: 5\n"
          "lr_scheduler_kwargs: {mode: max, factor: 0.5, patience: 3, threshold_mode: abs, min_lr: 1e-7}");
  OptimConfig optim = config.actor.optim;
  EXPECT_EQ(optim.lr_scheduler_type, LrSchedule::kReduceOnPlateau);
  EXPECT_EQ(optim.lr_warmup_steps, -1) << "it has no warm-up";
  EXPECT_EQ(optim.lr_metric.name, "eval_reward");
  EXPECT_EQ(optim.lr_metric.mode, MetricMode::kMax);
  EXPECT_EQ(optim.lr_metric.factor, 0.5);
  EXPECT_EQ(optim.lr_metric.patience, 3);
  EXPECT_EQ(optim.lr_metric.threshold_mode, ThresholdMode::kAbs);
  EXPECT_EQ(optim.lr_metric.min_lr, 1e-7);
  optim = trl(eval + "lr_scheduler_type: greedy\nlr_scheduler_kwargs: {smooth: true, warmup: 2}").actor.optim;
  EXPECT_EQ(optim.lr_metric.mode, MetricMode::kMin);
  EXPECT_EQ(optim.lr_metric.smooth_window, 50);
  EXPECT_EQ(optim.lr_metric.raise_cooldown, 2);
  EXPECT_EQ(optim.lr_metric.min_lr, 1e-3) << "transformers' default";
  EXPECT_THAT(import_error("trl", "eval_strategy: steps\nlr_scheduler_type: greedy"), HasSubstr("follows eval_loss"));
  EXPECT_THAT(import_error("trl", eval + "lr_scheduler_type: greedy\nlr_scheduler_kwargs: {nothing: 1}"),
              HasSubstr("lr_scheduler_kwargs.nothing"));
}

TEST(ImportTrl, TheBestCheckpoint) {
  const std::string loads = "load_best_model_at_end: true\neval_strategy: steps\n";
  RunConfig config = trl(loads + "metric_for_best_model: reward");
  EXPECT_EQ(config.trainer.metric_for_best_model, "eval_reward");
  EXPECT_TRUE(config.trainer.greater_is_better);
  config = trl("metric_for_best_model: eval_completions/mean_length\ngreater_is_better: false\neval_strategy: steps");
  EXPECT_EQ(config.trainer.metric_for_best_model, "eval_completions/mean_length");
  EXPECT_FALSE(config.trainer.greater_is_better);
  EXPECT_THAT(import_error("trl", loads), HasSubstr("a validation has no 'loss'; set metric_for_best_model"));
}

TEST(ImportTrl, SamplingRewardsAndValidation) {
  RunConfig config =
      trl("temperature: 0.7\ntop_p: 0.9\ntop_k: 50\nmin_p: 0.05\nrepetition_penalty: 1.1\n"
          "generation_kwargs: {min_new_tokens: 4, stop_strings: ['</s>']}\nshuffle_dataset: false\n");
  EXPECT_EQ(config.rollout.top_k, 50);
  EXPECT_EQ(config.rollout.min_new_tokens, 4);
  EXPECT_THAT(config.rollout.stop, ElementsAre("</s>"));
  EXPECT_FALSE(config.data.shuffle);
  EXPECT_EQ(trl("vllm_structured_outputs_regex: '(yes|no)'").rollout.structured_outputs_regex, "(yes|no)");
  EXPECT_EQ(trl("vllm_guided_decoding_regex: a+").rollout.structured_outputs_regex, "a+");
  EXPECT_THAT(import_error("trl", "generation_kwargs: {num_beams: 4}"), HasSubstr("generation_kwargs.num_beams"));

  config = trl("reward_funcs: [get_soft_overlong_punishment, my_lib.rewards.good]\nreward_weights: [0.5, 2]\n");
  ASSERT_EQ(config.reward.size(), 2U);
  EXPECT_EQ(config.reward[0].params, Json({{"limit", 1280}, {"buffer", 256}}));
  EXPECT_EQ(config.reward[0].weight, 0.5);
  EXPECT_EQ(config.reward[1].use, "python");
  EXPECT_EQ(config.reward[1].params, Json({{"path", "my_lib/rewards.py"}, {"function", "good"}}));
  EXPECT_EQ(config.reward[1].weight, 2.0);
  EXPECT_THAT(import_error("trl", "reward_funcs: [good]"), HasSubstr("the reward 'good' does not exist in Mortise"));
  EXPECT_THAT(import_error("trl", "reward_funcs: [a.b]\nreward_weights: [1, 2]"), HasSubstr("2 reward_weights for 1"));

  config =
      trl("reward_funcs: [my_lib.rewards.good, models/other.v2]\nreward_model_name_or_path: /models/rm\n"
          "reward_weights: [0.5, 2, 3]\n");
  ASSERT_EQ(config.reward.size(), 3U);
  EXPECT_EQ(config.reward[0].use, "reward_model") << "TRL's script has it before the functions";
  EXPECT_EQ(config.reward[0].params, Json({{"model", "/models/rm"}}));
  EXPECT_EQ(config.reward[0].weight, 0.5);
  EXPECT_EQ(config.reward[1].use, "python");
  EXPECT_EQ(config.reward[2].params, Json({{"model", "models/other.v2"}}));
  EXPECT_EQ(config.reward[2].weight, 3.0);
  EXPECT_NE(config.reward[0].name, config.reward[2].name);
  EXPECT_THAT(import_error("trl", "reward_model_name_or_path: /models/rm\nreward_weights: [1, 2]"),
              HasSubstr("2 reward_weights for 1 reward_funcs and the reward model"));

  config = trl("reward_funcs: [accuracy_reward]");
  const Json accuracy{
      {"column", "solution"}, {"extract", "marked"}, {"gold", "marked"}, {"on_unreadable_gold", "skip"}};
  EXPECT_EQ(config.reward[0].params, accuracy);

  config = trl("eval_strategy: steps\neval_steps: 50\neval_on_start: yes\nnum_generations_eval: 4\ntop_p: 0.9");
  EXPECT_EQ(config.trainer.test_freq, 50);
  EXPECT_TRUE(config.trainer.val_before_train);
  EXPECT_EQ(config.rollout.val_kwargs.n, 4);
  EXPECT_TRUE(config.rollout.val_kwargs.do_sample);
  EXPECT_EQ(config.rollout.val_kwargs.top_p, 0.9);
  EXPECT_EQ(trl("eval_strategy: steps\nmin_p: 0.05").rollout.val_kwargs.min_p, 0.05);
}

// What `trl grpo` reads in addition to the trainer's settings.
TEST(ImportTrl, MixturesOfDataAndTheFilesOwnSettings) {
  const std::string toml = imported_toml("trl", "datasets:\n- path: 3\nenv: {X: 1}\nstreaming: true\n");
  EXPECT_THAT(toml, HasSubstr("#   datasets = [{\"path\":3}] (peer.yaml:1:1): "));
  EXPECT_THAT(toml, HasSubstr("# train_files = [\"train.jsonl\"]"));
  EXPECT_THAT(toml, HasSubstr("streaming = true"));
  const RunConfig mixed =
      trl("dataset_name: org/name\ndatasets:\n- path: parquet\n  data_files: [a.parquet, b.csv.gz]\n"
          "- path: ./saved\ndataset_streaming: true\n");
  EXPECT_THAT(mixed.data.train_files, ElementsAre("a.parquet", "b.csv.gz", "./saved"));
  EXPECT_TRUE(mixed.data.streaming);
  EXPECT_THAT(trl("dataset_name: data/rows.parquet").data.train_files, ElementsAre("data/rows.parquet"));
  EXPECT_THAT(trl("dataset_name: org/name").data.train_files, ElementsAre("hf://datasets/org/name/train"));
  EXPECT_TRUE(trl("dataset_name: org/name\ndataset_test_split: dev").data.val_files.empty()) << "eval_strategy is no";
  EXPECT_TRUE(trl("dataset_name: org/name\neval_strategy: null\ndataset_test_split: dev").data.val_files.empty());
  EXPECT_THAT(trl("dataset_name: org/name\neval_strategy: steps").data.val_files,
              ElementsAre("hf://datasets/org/name/test"));
  EXPECT_THAT(
      trl("dataset_name: org/name\ndataset_config: main\ndataset_test_split: dev\neval_strategy: epoch").data.val_files,
      ElementsAre("hf://datasets/org/name/main/dev"));
  EXPECT_THAT(trl("dataset_name: org/name\ndataset_config: main\ndataset_train_split: test").data.train_files,
              ElementsAre("hf://datasets/org/name/main/test"));
  EXPECT_THAT(trl("datasets:\n- {path: a/b, name: main, split: test}\n- {path: c/d}").data.train_files,
              ElementsAre("hf://datasets/a/b/main/test", "hf://datasets/c/d/train"));
  EXPECT_THAT(import_error("trl", "test_split_size: 0.1"), HasSubstr("is not supported: "));
  EXPECT_THAT(import_error("trl", "--config grpo.yaml --beta 0.1", "run.sh"), HasSubstr("one file is read"));
  EXPECT_FALSE(imported("trl", "--no_shuffle_dataset", "run.sh").data.shuffle);
  EXPECT_THAT(import_error("trl", "--no_such", "run.sh"), HasSubstr("unknown setting 'no_such'"));
}

// TRL counts updates, and refuses to refresh a missing reference.
TEST(ImportTrl, DeepSpeedsStageOfZero) {
  const auto stage = [](const std::string& line) { return trl(line).ranks.zero_stage; };
  EXPECT_EQ(stage(""), 0);
  EXPECT_EQ(stage("deepspeed: {zero_optimization: {stage: 1, overlap_comm: true}, bf16: {enabled: true}}\n"), 1);
  EXPECT_EQ(stage("deepspeed: {zero_optimization: {stage: 2}}\n"), 2);
  EXPECT_EQ(stage("deepspeed: {gradient_clipping: 1.0}\n"), 0);
  EXPECT_EQ(stage("deepspeed: {zero_optimization: {stage: 3}}\n"), 3);
  const std::string file = imported_toml("trl", "deepspeed: ds_zero2.json\n");
  EXPECT_THAT(file, HasSubstr("set ranks.zero_stage to its zero_optimization.stage"));
  EXPECT_THAT(file, testing::Not(HasSubstr("zero_stage = ")));
}

TEST(ImportTrl, TheReferenceIsRefreshedByStepsOrInsideThem) {
  const std::string sync = "sync_ref_model: true\nsteps_per_generation: 2\nref_model_sync_steps: ";
  const RunConfig config = trl(sync + "4\nbeta: 0.1\nref_model_mixup_alpha: 0.9\n");
  EXPECT_EQ(config.ref.sync_steps, 2);
  EXPECT_EQ(config.ref.sync_unit, ScheduleUnit::kStep) << "a generation batch has two updates";
  EXPECT_EQ(config.ref.mixup_alpha, 0.9);
  const RunConfig inside = trl(sync + "3\nbeta: 0.1\n");
  EXPECT_EQ(inside.ref.sync_steps, 3);
  EXPECT_EQ(inside.ref.sync_unit, ScheduleUnit::kUpdate);
  EXPECT_THAT(import_error("trl", sync + "4\n"), HasSubstr("peer.yaml:1:1: sync_ref_model is true, but beta is 0"));
  EXPECT_EQ(trl("ref_model_sync_steps: 4\n").ref.sync_steps, std::nullopt);
}

// A setting without its own effect still has a line.
TEST(ImportTrl, NoSettingIsLost) {
  const std::string text =
      "max_steps: 10\nnum_train_epochs: 1\nadam_beta1: 0.9\nimportance_sampling_level: token\nwarmup_ratio: 0\n"
      "use_peft: false\nepsilon_high: null\nlr_scheduler_kwargs: {}\nlog_completions: false\nsync_ref_model: false\n"
      "generation_kwargs: {}\nreward_weights: null\nentropy_coef: 0\nuse_adaptive_entropy: false\neval_strategy: "
      "'no'\n";
  const std::string toml = imported_toml("trl", text);
  size_t line = 0;
  for (const std::string_view setting : split(text, '\n')) {
    if (setting.empty()) continue;
    const std::string place = "peer.yaml:" + std::to_string(++line) + ":1";
    EXPECT_THAT(toml, HasSubstr(place)) << setting;
  }
  EXPECT_THAT(toml, HasSubstr("num_train_epochs = 1 (peer.yaml:2:1): max_steps is given"));
}

TEST(ImportTrl, CommentsSayWhatCameFromWhere) {
  const std::string toml = imported_toml("trl", "learning_rate: 5e-6\nbf16: true\nsave_strategy: no\n", "grpo.yaml");
  EXPECT_THAT(toml, HasSubstr("lr = 5e-06  # grpo.yaml:1:1: learning_rate\n"));
  EXPECT_THAT(toml, HasSubstr("weight_decay = 0.0  # TRL's default of weight_decay\n"));
  EXPECT_THAT(toml, HasSubstr("#   bf16 = true (grpo.yaml:2:1): Mortise computes in model.dtype"));
  EXPECT_THAT(toml, HasSubstr("# path = \"...\"  # the model's folder"));
  EXPECT_THAT(toml, HasSubstr("save_strategy = false (grpo.yaml:3:1)")) << "YAML's no";
}

TEST(ImportTrl, ErrorsOfTheCheckNameTheSetting) {
  EXPECT_THAT(import_error("trl", "temperature: 0", "grpo.yaml"), HasSubstr("grpo.yaml:1:1: temperature: "));
  EXPECT_THAT(import_error("trl", "top_p: 7", "grpo.yaml"), HasSubstr("grpo.yaml:1:1: top_p: "));
  EXPECT_THAT(import_error("trl", "beta: many", "grpo.yaml"), HasSubstr("'beta' must be a number"));
}

// The settings of TRL's recorded runs: each imports, and the batches are TRL's. tests/golden/replay_test.cpp runs them.
TEST(ImportTrl, TheReplayedRuns) {
  auto reader =
      JsonlReader::open(default_env(), Path(MORTISE_SOURCE_DIR) / "tests/golden/import/trl_replay.jsonl").value();
  int num_cases = 0;
  while (auto row = reader.next().value()) {
    const Json& settings = row->value["trl"];
    const Json& derived = row->value["derived"];
    SCOPED_TRACE(row->value["case"].get<std::string>());
    ++num_cases;
    const Result<ImportedConfig> result = import_text("trl", settings.dump(), "params.json");
    ASSERT_TRUE(result.ok()) << result.error().to_string();
    EXPECT_THAT(result->warnings, ElementsAre());
    const RunConfig config = config_of(result->toml);
    EXPECT_EQ(config.data.train_batch_size, derived["prompts_per_generation_batch"]);
    EXPECT_EQ(config.actor.ppo_mini_batch_size, derived["prompts_per_optimizer_step"]);
    EXPECT_EQ(config.trainer.total_training_steps, derived["generation_batches"].get<int64_t>());
    EXPECT_EQ(plan_batches(config).updates_per_step, derived["optimizer_steps_per_generation_batch"]);
    EXPECT_EQ(plan_batches(config).rows_per_update, derived["completions_per_optimizer_step"]);
    EXPECT_EQ(config.actor.optim.lr, settings["learning_rate"]);
    EXPECT_EQ(config.actor.optim.eps, settings["adam_epsilon"]);
    EXPECT_EQ(config.actor.optim.weight_decay, settings["weight_decay"]);
    EXPECT_EQ(config.actor.grad_clip, settings["max_grad_norm"]);
    EXPECT_EQ(config.actor.use_kl_loss, settings["beta"] != 0.0);
    EXPECT_EQ(config.rollout.temperature, settings["temperature"]);
    EXPECT_EQ(config.data.max_response_length, settings["max_completion_length"]);
  }
  EXPECT_EQ(num_cases, 21);
}

}  // namespace
}  // namespace mortise::test
