// ms-swift's GRPO arguments, as a list of arguments and as YAML.
#include "config/fields.h"
#include "foundation/base/choice.h"
#include "import/frameworks.h"
#include "import_support.h"

namespace mortise::test {
namespace {

RunConfig swift(std::string_view arguments) {
  return imported("swift", "--train_type full " + std::string(arguments), "run.sh");
}
std::string swift_error(std::string_view arguments) {
  return import_error("swift", "--train_type full " + std::string(arguments), "run.sh");
}
// Eight completions in a step: the smallest batch that holds a group.
constexpr std::string_view kBatch = "--per_device_train_batch_size 8 ";

TEST(ImportSwift, DefaultsAreSwifts) {
  const RunConfig config = swift(kBatch);
  EXPECT_EQ(choice_name(config.actor.loss_agg_mode), "seq-mean-token-mean");
  EXPECT_EQ(config.actor.policy_loss.loss_mode, "vanilla");
  EXPECT_EQ(config.actor.clip_ratio_c, 0.0);
  EXPECT_TRUE(config.actor.use_kl_loss);
  EXPECT_EQ(config.actor.kl_loss_coef, 0.04);
  EXPECT_EQ(config.actor.kl_loss_type, "low_var_kl");
  EXPECT_EQ(config.algorithm.adv_params, Json({{"epsilon", 1e-4}}));
  EXPECT_EQ(config.rollout.temperature, 0.9);
  EXPECT_EQ(config.actor.optim.lr, 1e-5);
  EXPECT_EQ(config.actor.optim.weight_decay, 0.1);
  EXPECT_EQ(config.actor.optim.betas, (std::vector<double>{0.9, 0.95}));
  EXPECT_EQ(choice_name(config.actor.optim.lr_scheduler_type), "cosine");
  EXPECT_EQ(config.rollout.n, 8);
  EXPECT_EQ(config.data.train_batch_size, 1);
}

TEST(ImportSwift, AReferenceOfItsOwn) {
  const std::string model = std::string(kBatch) + "--model /models/rl ";
  EXPECT_EQ(swift(model + "--ref_model /models/sft").ref.path, "/models/sft");
  EXPECT_EQ(swift(model + "--ref_model /models/rl").ref.path, std::nullopt);
  EXPECT_EQ(swift(model + "--ref_model /models/sft --beta 0").ref.path, std::nullopt) << "there is no reference";
  EXPECT_EQ(swift(model + "--ref_adapters /adapters/sft").ref.path, "/adapters/sft");
  EXPECT_THAT(swift_error(model + "--ref_adapters a b"), HasSubstr("ref_adapters with several adapters"));
  EXPECT_THAT(swift_error(model + "--ref_adapters a --ref_model b"), HasSubstr("ref_adapters with several adapters"));
}

TEST(ImportSwift, LoraPlusIsAGroup) {
  for (const std::string optimizer : {"", "--optimizer lorap "}) {
    const RunConfig config =
        imported("swift", "--tuner_type lora --lorap_lr_ratio 16 " + optimizer + std::string(kBatch), "run.sh");
    EXPECT_EQ(config.actor.optim.groups["lora_plus"]["lr_scale"], 16.0);
    EXPECT_EQ(choice_name(config.actor.optim.optimizer), "adamw");
  }
  EXPECT_TRUE(swift(std::string(kBatch) + "--lorap_lr_ratio 16").actor.optim.groups.empty()) << "all weights";
}

TEST(ImportSwift, ATeacherAddsItsLogRatioToTheAdvantages) {
  const RunConfig taught = swift(std::string(kBatch) + "--teacher_model /models/teacher");
  EXPECT_EQ(taught.teacher.path, "/models/teacher");
  EXPECT_EQ(taught.teacher.advantage_coef, 1.0);
  EXPECT_EQ(taught.teacher.loss_coef, 0.0);
  const RunConfig less = swift(std::string(kBatch) + "--teacher_model /models/teacher --teacher_kl_coef 0.5");
  EXPECT_EQ(less.teacher.advantage_coef, 0.5);
  EXPECT_EQ(swift(std::string(kBatch) + "--teacher_kl_coef 0.5").teacher.advantage_coef, 0.0);
}

TEST(ImportSwift, ChordMixesSupervisedRowsIntoUpdates) {
  const std::string chord =
      "--chord_sft_dataset a.jsonl b.jsonl --chord_sft_per_device_train_batch_size 3 --chord_mu_warmup_steps 2 "
      "--chord_mu_decay_steps 10 --chord_mu_peak 0.9 --chord_mu_valley 0.05 --loss_scale default ";
  const RunConfig one = swift(std::string(kBatch) + chord);
  EXPECT_EQ(one.sft_mix.files, (std::vector<std::string>{"a.jsonl", "b.jsonl"}));
  EXPECT_EQ(one.sft_mix.train_batch_size, 3);
  EXPECT_EQ(one.sft_mix.rows_per_mean, std::nullopt);
  EXPECT_FALSE(one.sft_mix.phi);
  EXPECT_EQ(one.sft_mix.mu_peak, 0.9);
  EXPECT_EQ(one.sft_mix.mu_valley, 0.05);
  EXPECT_EQ(one.sft_mix.mu_warmup_steps, 2);
  EXPECT_EQ(one.sft_mix.mu_decay_steps, 10);
  EXPECT_TRUE(one.sft.assistant_only_loss);
  // Every micro-step draws its own rows, and takes its own mean.
  const RunConfig four = swift("--per_device_train_batch_size 4 --gradient_accumulation_steps 4 --max_length 100 " +
                               chord + "--chord_enable_phi_function true");
  EXPECT_EQ(four.sft_mix.train_batch_size, 12);
  EXPECT_EQ(four.sft_mix.rows_per_mean, 3);
  EXPECT_TRUE(four.sft_mix.phi);
  EXPECT_EQ(four.sft.max_length, 100);
  // Passes that lie in one update are micro-steps too: each of the eight draws its rows.
  const RunConfig passes = swift(
      std::string(kBatch) + "--gradient_accumulation_steps 8 --steps_per_generation 2 --num_iterations 2 " + chord);
  EXPECT_EQ(passes.data.train_batch_size, 4);
  EXPECT_EQ(passes.sft_mix.train_batch_size, 24);
  EXPECT_EQ(passes.sft_mix.rows_per_mean, 3);
  EXPECT_FALSE(swift(std::string(kBatch) + "--chord_mu_peak 0.5").sft_mix.is_on());
  EXPECT_THAT(swift_error(std::string(kBatch) + "--chord_sft_dataset a.jsonl --chord_mu_peak 0.5"),
              HasSubstr("needs chord_sft_per_device_train_batch_size, chord_mu_warmup_steps"));
  EXPECT_THAT(swift_error(std::string(kBatch) + chord + "--chord_sft_dataset AI-ModelScope/rows#50"),
              HasSubstr("is not a file of rows"));
}

TEST(ImportSwift, AdaptersMustBeSaidToBeOff) {
  const Result<ImportedConfig> silent = import_text("swift", "per_device_train_batch_size: 8");
  ASSERT_TRUE(silent.ok());
  ASSERT_EQ(silent->warnings.size(), 1U);
  EXPECT_THAT(silent->warnings[0], HasSubstr("tuner_type: not set, so a LoRA adapter is trained as in ms-swift"));
  const RunConfig unsaid = config_of(silent->toml);
  EXPECT_EQ(unsaid.model.lora_rank, 8);
  EXPECT_EQ(unsaid.model.lora_alpha, 32.0);
  EXPECT_EQ(unsaid.actor.optim.lr, 1e-4);
  EXPECT_EQ(imported("swift", "per_device_train_batch_size: 8\ntuner_type: full").model.lora_rank, 0);
  EXPECT_THAT(import_error("swift", "train_type: longlora\nper_device_train_batch_size: 8"),
              HasSubstr("use full or lora"));
  const std::string lora = "train_type: lora\nper_device_train_batch_size: 8\n";
  EXPECT_THAT(imported_toml("swift", lora), HasSubstr("lora_rank = 8  # "));
  const RunConfig stock = imported("swift", lora);
  EXPECT_EQ(stock.model.lora_dropout, 0.05);
  EXPECT_EQ(stock.actor.optim.lr, 1e-4) << "its default for adapters";
  EXPECT_TRUE(imported("swift", lora + "use_rslora: true").model.use_rslora);
  EXPECT_EQ(imported("swift", lora + "lora_dropout: 0").model.lora_dropout, 0.0);
  EXPECT_EQ(imported("swift", lora + "learning_rate: 3e-6").actor.optim.lr, 3e-6);
  const std::string floor = "lr_scheduler_type: cosine_with_min_lr\nlr_scheduler_kwargs: {min_lr: 1e-5}\n";
  EXPECT_DOUBLE_EQ(imported("swift", lora + floor).actor.optim.min_lr_ratio, 0.1);
}

TEST(ImportSwift, AnAdapterToContinueIsNamed) {
  const std::string lora = "train_type: lora\nper_device_train_batch_size: 8\n";
  const RunConfig config = imported("swift", lora + "adapters: [output/checkpoint-100]\nlora_rank: 4");
  EXPECT_EQ(config.model.lora_adapter_path, "output/checkpoint-100");
  EXPECT_EQ(config.model.lora_rank, 0) << "the adapter has its own";
  EXPECT_THAT(import_error("swift", lora + "adapters: [a, b]"), HasSubstr("2 adapters are named"));
  EXPECT_THAT(import_error("swift", "train_type: full\nper_device_train_batch_size: 8\nadapters: [a]"),
              HasSubstr("train_type is not lora"));
}

TEST(ImportSwift, TheSettingsOfAnAdapterAreTaken) {
  const std::string lora = std::string(kBatch) + "--train_type lora ";
  EXPECT_EQ(swift(lora + "--init_weights pissa").model.init_lora_weights, LoraInit::kPissa);
  EXPECT_EQ(swift(lora + "--init_weights pissa_niter_16").model.init_lora_weights, LoraInit::kPissa);
  EXPECT_EQ(swift(lora + "--init_weights olora").model.init_lora_weights, LoraInit::kOlora);
  const RunConfig config = swift(lora +
                                 "--use_dora true --lora_bias all --modules_to_save embed_tokens lm_head "
                                 "--target_parameters mlp.experts.gate_up_proj mlp.experts.down_proj "
                                 "--learning_rate 1e-5");
  EXPECT_TRUE(config.model.use_dora);
  EXPECT_EQ(config.model.lora_bias, LoraBias::kAll);
  EXPECT_EQ(config.model.modules_to_save, (std::vector<std::string>{"embed_tokens", "lm_head"}));
  EXPECT_EQ(config.model.target_parameters,
            (std::vector<std::string>{"mlp.experts.gate_up_proj", "mlp.experts.down_proj"}));
}

TEST(ImportSwift, APunishmentThatGrowsOnIsTold) {
  const std::string reward = std::string(kBatch) + "--reward_funcs soft_overlong --soft_cache_length 100 ";
  const auto warnings_of = [&](const std::string& more) {
    const auto result = import_text("swift", "--train_type full " + reward + more, "run.sh");
    return result ? result->warnings : std::vector<std::string>{result.error().to_string()};
  };
  EXPECT_THAT(warnings_of(""), ElementsAre());
  EXPECT_THAT(warnings_of("--soft_max_length 512"), ElementsAre());
  EXPECT_THAT(warnings_of("--soft_max_length 400"), ElementsAre(HasSubstr("beyond it the punishment there grows on")));
  EXPECT_THAT(warnings_of("--soft_max_length 512 --max_completion_length 600"), ElementsAre(HasSubstr("grows on")));
}

TEST(ImportSwift, LossesLevelsAndEstimators) {
  EXPECT_EQ(swift(std::string(kBatch) + "--loss_type cispo --epsilon_high 5").actor.policy_loss.params["cap"], 5.0);
  RunConfig config = swift(std::string(kBatch) + "--loss_type real --beta 0");
  EXPECT_EQ(choice_name(config.actor.loss_agg_mode), "prompt-mean");
  EXPECT_EQ(config.algorithm.adv_estimator, "dr_grpo") << "forced by ms-swift";
  config = swift(std::string(kBatch) + "--loss_type fipo --fipo_clip_high_only false --delta 10");
  EXPECT_EQ(config.actor.policy_loss.params["fipo_clip_high_only"], false);
  EXPECT_EQ(config.actor.policy_loss.params["delta"], 10);
  EXPECT_EQ(config.actor.policy_loss.params["fipo_clip_range"], 0.2);
  EXPECT_EQ(config.actor.policy_loss.params["fipo_safety_threshold"], 4.0);
  const std::string fipo = "train_type: full\nper_device_train_batch_size: 8\nloss_type: fipo\n";
  for (const std::string off : {"null", "0"}) {  // both mean that nothing is clipped
    config = imported("swift", fipo + "fipo_clip_range: " + off + "\nfipo_safety_threshold: null\n");
    EXPECT_EQ(config.actor.policy_loss.params["fipo_clip_range"], "inf") << off;
    EXPECT_EQ(config.actor.policy_loss.params["fipo_safety_threshold"], "inf");
  }
  EXPECT_EQ(swift(std::string(kBatch) + "--importance_sampling_level sequence_token").actor.policy_loss.loss_mode,
            "gspo_token");
  EXPECT_EQ(
      swift(std::string(kBatch) + "--loss_type sapo --importance_sampling_level sequence").actor.policy_loss.loss_mode,
      "sapo_sequence");
  EXPECT_THAT(swift_error(std::string(kBatch) + "--loss_type sapo --importance_sampling_level sequence_token"),
              HasSubstr("is not supported"));

  // What ms-swift's real does not see, or sees in another way.
  const std::string real = std::string(kBatch) + "--loss_type real ";
  EXPECT_EQ(choice_name(swift(real).actor.kl_agg_mode), "token-mean") << "its KL is a mean over tokens";
  for (const std::string name : {"top_entropy_quantile 0.2", "rollout_importance_sampling_mode token_mask",
                                 "off_policy_sequence_mask_delta 0.1"}) {
    const std::string flag = name.substr(0, name.find(' '));
    EXPECT_THAT(swift_error(real + "--beta 0 --" + name), HasSubstr(flag + " with loss_type real is not supported"));
  }

  config = swift(std::string(kBatch) + "--advantage_estimator rloo --beta 0.05");
  EXPECT_EQ(config.algorithm.adv_estimator, "rloo");
  EXPECT_TRUE(config.algorithm.use_kl_in_reward);
  EXPECT_EQ(config.algorithm.kl_ctrl.kl_coef, 0.05);
  EXPECT_FALSE(config.actor.use_kl_loss);
  config = swift(std::string(kBatch) + "--advantage_estimator reinforce_plus_plus --beta 0");
  EXPECT_EQ(config.algorithm.adv_params, Json({{"epsilon", 1e-4}, {"std", "batch_centred"}}));
  config = swift(std::string(kBatch) + "--scale_rewards gdpo --kl_in_reward true");
  EXPECT_EQ(config.algorithm.adv_estimator, "gdpo");
  EXPECT_EQ(config.algorithm.adv_params["epsilon"], 1e-8);
  EXPECT_TRUE(config.actor.use_kl_loss) << "ms-swift puts it back into the loss";
}

// An update over several generation batches is one over one batch, unless ms-swift normalizes within each of them.
TEST(ImportSwift, GenerationBatchesThatAreNormalizedEachStayApart) {
  const std::string several = std::string(kBatch) + "--gradient_accumulation_steps 4 --steps_per_generation 2 ";
  EXPECT_EQ(swift(several).data.train_batch_size, 4);
  EXPECT_EQ(swift(several + "--scale_rewards false").algorithm.adv_estimator, "dr_grpo");
  EXPECT_EQ(swift(several + "--advantage_estimator rloo").algorithm.adv_estimator, "rloo");
  EXPECT_EQ(swift(several + "--advantage_estimator reinforce_plus_plus --scale_rewards group").data.train_batch_size,
            4);
  for (const char* each :
       {"--advantage_estimator reinforce_plus_plus", "--scale_rewards gdpo", "--scale_rewards batch"}) {
    const RunConfig apart = swift(several + each);
    EXPECT_EQ(apart.data.train_batch_size, 2) << each;
    EXPECT_EQ(apart.actor.ppo_mini_batch_size, 4) << each;
    EXPECT_TRUE(apart.actor.carry_rows) << each;
  }
  const auto warned = import_text("swift", "--train_type full " + several + "--loss_type cispo", "run.sh");
  ASSERT_TRUE(warned.ok()) << warned.error().to_string();
  EXPECT_THAT(warned->warnings, ElementsAre(HasSubstr("an update has 2 generation batches")));
}

// Rows keep the order of their prompts, as there.
TEST(ImportSwift, UpdatesFromTwoGenerationBatchesCarryRows) {
  const std::string crossing = std::string(kBatch) + "--gradient_accumulation_steps 3 --steps_per_generation 2 ";
  const RunConfig config = swift(crossing + "--loss_type grpo --max_steps 5");
  EXPECT_EQ(config.data.train_batch_size, 2);
  EXPECT_EQ(config.actor.ppo_mini_batch_size, 3);
  EXPECT_TRUE(config.actor.carry_rows);
  EXPECT_FALSE(config.actor.shuffle);
  EXPECT_EQ(config.trainer.total_training_updates, 5);
  const RunConfig mixed =
      swift(crossing +
            "--loss_type grpo --chord_sft_dataset a.jsonl --chord_sft_per_device_train_batch_size 3 "
            "--chord_mu_warmup_steps 2 --chord_mu_decay_steps 10 --chord_mu_peak 0.9 "
            "--chord_mu_valley 0.05 --loss_scale default");
  EXPECT_TRUE(mixed.actor.carry_rows);
  EXPECT_EQ(mixed.sft_mix.train_batch_size, 9) << "3 for each of the 3 micro-steps of an update";
  EXPECT_EQ(mixed.sft_mix.rows_per_mean, 3);
}

TEST(ImportSwift, AShellScriptOfItsExamples) {
  const RunConfig config = imported("swift", R"(CUDA_VISIBLE_DEVICES=0,1 NPROC_PER_NODE=2 \
swift rlhf \
    --rlhf_type grpo \
    --model /models/qwen \
    --external_plugins plugin.py \
    --reward_funcs format soft_overlong \
    --reward_weights 1 0.5 \
    --soft_cache_length 64 \
    --use_vllm true --vllm_mode colocate \
    --train_type full --torch_dtype bfloat16 \
    --dataset data.jsonl \
    --max_length 1024 --max_completion_length 256 \
    --per_device_train_batch_size 4 --gradient_accumulation_steps 4 \
    --learning_rate 1e-6 --warmup_ratio 0.05 \
    --num_generations 8 --stop_words '</answer>' \
    --deepspeed zero2 --report_to tensorboard
)",
                                    "run.sh", 2);
  EXPECT_EQ(config.model.path, "/models/qwen");
  EXPECT_EQ(config.data.train_batch_size, 4);
  EXPECT_EQ(config.data.max_prompt_length, 1024);
  EXPECT_EQ(choice_name(config.data.truncation), "left");
  EXPECT_EQ(config.data.max_response_length, 256);
  EXPECT_EQ(config.actor.optim.lr_warmup_steps_ratio, 0.05);
  EXPECT_THAT(config.rollout.stop, ElementsAre("</answer>"));
  ASSERT_EQ(config.reward.size(), 2U);
  EXPECT_EQ(config.reward[0].use, "format");
  EXPECT_EQ(config.reward[0].params, Json({{"layout", "think_answer"}}));
  EXPECT_EQ(config.reward[1].use, "length");
  EXPECT_EQ(config.reward[1].params, Json({{"buffer", 64}}));
  EXPECT_EQ(config.reward[1].weight, 0.5);
  EXPECT_EQ(config.ranks.zero_stage, 2);
}

TEST(ImportSwift, PatternsGuideRollouts) {
  const RunConfig config = swift(std::string(kBatch) + "--structured_outputs_regex '(yes|no)' ");
  EXPECT_EQ(config.rollout.structured_outputs_regex, "(yes|no)");
}

TEST(ImportSwift, ServersBecomeTheBackend) {
  const std::string servers = std::string(kBatch) + "--use_vllm true --vllm_mode server ";
  RunConfig config = swift(servers + "--vllm_server_host gpu1 gpu2 --vllm_server_port 8000 8001");
  EXPECT_EQ(config.rollout.name, "vllm");
  EXPECT_EQ(config.rollout.params["url"], "http://gpu1:8000, http://gpu2:8001");
  config = swift(servers + "--vllm_server_base_url https://gpu1/v");
  EXPECT_EQ(config.rollout.params["url"], "https://gpu1/v");
  EXPECT_THAT(swift_error(servers), HasSubstr("name the server"));
  EXPECT_THAT(swift_error(servers + "--vllm_server_host a --rollout_importance_sampling_mode token_mask"),
              HasSubstr("set algorithm.rollout_correction"));
}

TEST(ImportSwift, AccuracyAndCosineJudgeAsSwiftDoes) {
  const RunConfig config = swift(std::string(kBatch) + "--reward_funcs accuracy cosine --cosine_max_len 64");
  ASSERT_EQ(config.reward.size(), 2U);
  EXPECT_EQ(config.reward[0].use, "math_equal");
  const Json accuracy{{"column", "solution"},
                      {"extract", "marked"},
                      {"tag", "answer"},
                      {"gold", "marked"},
                      {"on_unreadable_gold", "miss"}};
  EXPECT_EQ(config.reward[0].params, accuracy);
  EXPECT_EQ(config.reward[1].use, "cosine");
  for (const auto& [name, value] : accuracy.items()) EXPECT_EQ(config.reward[1].params[name], value) << name;
}

// With validation rows ms-swift validates as often as it saves.
TEST(ImportSwift, ValidationFollowsSaving) {
  EXPECT_EQ(swift(kBatch).trainer.test_freq, -1);
  const std::string rows = std::string(kBatch) + "--dataset t.jsonl --val_dataset v.jsonl ";
  const RunConfig config = swift(rows);
  EXPECT_THAT(config.data.val_files, ElementsAre("v.jsonl"));
  EXPECT_EQ(config.trainer.test_freq, 500);
  EXPECT_FALSE(config.trainer.val_before_train);
  EXPECT_EQ(config.rollout.val_kwargs.n, 8);
  EXPECT_EQ(config.rollout.val_kwargs.temperature, 0.9);
  EXPECT_EQ(swift(rows + "--save_steps 20").trainer.test_freq, 20);
  EXPECT_EQ(swift(rows + "--eval_steps 5").trainer.test_freq, 5);
  EXPECT_EQ(swift(rows + "--eval_strategy no").trainer.test_freq, -1);
}

TEST(ImportSwift, MixturesAndStreams) {
  const RunConfig config = swift(std::string(kBatch) +
                                 "--dataset a.jsonl b.csv --interleave_prob 0.7 0.3 --stopping_strategy all_exhausted "
                                 "--streaming true --shuffle_buffer_size 50");
  EXPECT_THAT(config.data.train_files, ElementsAre("a.jsonl", "b.csv"));
  EXPECT_THAT(config.data.train_weights, ElementsAre(0.7, 0.3));
  EXPECT_EQ(config.data.stopping_strategy, StoppingStrategy::kAllExhausted);
  EXPECT_TRUE(config.data.streaming);
  EXPECT_EQ(config.data.shuffle_buffer_size, 50);
  EXPECT_EQ(swift(std::string(kBatch) + "--dataset a.jsonl --streaming true").data.shuffle_buffer_size, 1000);
  EXPECT_TRUE(swift(std::string(kBatch) + "--dataset AI-ModelScope/alpaca#500").data.train_files.empty());
}

TEST(ImportSwift, RewardModelsComeBehindTheFunctions) {
  const RunConfig config =
      swift(std::string(kBatch) + "--reward_model /models/a /models/b --reward_funcs format --reward_weights 1 2 3");
  ASSERT_EQ(config.reward.size(), 3U);
  EXPECT_EQ(config.reward[0].use, "format");
  for (const size_t place : {1U, 2U}) {
    EXPECT_EQ(config.reward[place].use, "reward_model");
    EXPECT_EQ(config.reward[place].params, Json({{"model", place == 1 ? "/models/a" : "/models/b"}}));
    EXPECT_EQ(config.reward[place].weight, static_cast<double>(place + 1));
  }
  EXPECT_NE(config.reward[1].name, config.reward[2].name);
  EXPECT_THAT(swift_error(std::string(kBatch) + "--reward_model /models/a --reward_model_plugin genrm"),
              HasSubstr("is not supported: "));
}

// First what trains in any case, then what is frozen.
TEST(ImportSwift, FrozenParametersBecomeGroups) {
  const std::string full = std::string(kBatch) + "--train_type full ";
  EXPECT_TRUE(swift(full).actor.optim.groups.empty());
  EXPECT_EQ(swift(full + "--freeze_parameters model.embed_tokens model.layers.0").actor.optim.groups,
            Json({{"frozen", {{"match", "^model\\.embed_tokens|^model\\.layers\\.0"}, {"freeze", true}}}}));
  const Json both = swift(full +
                          "--freeze_parameters_ratio 1 --trainable_parameters lm_head "
                          "--trainable_parameters_regex 'layers.1[0-9]'")
                        .actor.optim.groups;
  EXPECT_EQ(both.begin().key(), "trained");
  EXPECT_EQ(both["trained"], Json({{"match", "^lm_head|(?:layers.1[0-9])"}}));
  EXPECT_EQ(both["frozen"], Json({{"match", "."}, {"freeze", true}}));
  EXPECT_EQ(swift(full + "--freeze_parameters_regex 'mlp|norm'").actor.optim.groups["frozen"]["match"], "mlp|norm");
  EXPECT_TRUE(swift(full + "--trainable_parameters lm_head").actor.optim.groups.empty()) << "nothing is frozen";
  EXPECT_TRUE(swift(std::string(kBatch) + "--train_type lora --freeze_parameters model").actor.optim.groups.empty());
  EXPECT_THAT(swift_error(full + "--freeze_parameters_ratio 0.5"),
              HasSubstr("freeze_parameters_ratio = 0.5 is not supp"));
}

TEST(ImportSwift, AStepIsSampledWhileTheOneBeforeItLearns) {
  EXPECT_EQ(swift(std::string(kBatch) + "--async_generate true").trainer.mode, TrainMode::kOneStepOff);
  EXPECT_EQ(swift(std::string(kBatch) + "--async_generate false").trainer.mode, TrainMode::kSync);
  EXPECT_THAT(swift_error(std::string(kBatch) + "--async_generate true --rollout_importance_sampling_mode token_mask"),
              HasSubstr("with async_generate is not supported"))
      << "the sampler's weights are older than the trainer's";
}

TEST(ImportSwift, WhatWouldChangeTheNumbersIsRefused) {
  for (const char* arguments : {"--rlhf_type dpo", "--multi_turn_scheduler x", "--teacher_model_server http://x",
                                "--teacher_adapters a", "--vllm_quantization fp8"}) {
    EXPECT_THAT(swift_error(std::string(kBatch) + arguments), HasSubstr("is not supported: ")) << arguments;
  }
  // An adapter that starts from the weights' own directions learns otherwise than one with B = 0.
  for (const char* start : {"loftq", "lora-ga", "false"}) {
    EXPECT_THAT(swift_error(std::string(kBatch) + "--train_type lora --init_weights " + start),
                HasSubstr("use true, gaussian, pissa or olora"));
  }
  EXPECT_EQ(swift(std::string(kBatch) + "--train_type lora --init_weights true --lora_rank 4").model.lora_rank, 4);
  EXPECT_THAT(swift_error(std::string(kBatch) + "--reward_funcs mine"),
              HasSubstr("the reward 'mine' does not exist in Mortise"));
  EXPECT_THAT(swift_error(std::string(kBatch) + "--reward_funcs soft_overlong"), HasSubstr("soft_cache_length"));
  EXPECT_THAT(swift_error("--per_device_train_batch_size 4"), HasSubstr("does not hold whole groups of 8"));
  const RunConfig halves = swift("--per_device_train_batch_size 4 --steps_per_generation 2");
  EXPECT_EQ(halves.actor.rows_per_update, 4);
  EXPECT_FALSE(halves.actor.shuffle) << "ms-swift keeps the order of the rows";
  const std::string mask = std::string(kBatch) + "--off_policy_sequence_mask_delta 0.5 ";
  EXPECT_THAT(swift_error(mask), HasSubstr("with a KL in the loss (beta) is not supported"));
  EXPECT_THAT(swift_error(mask + "--beta 0 --loss_type bnpo"), HasSubstr("with loss_type bnpo is not supported"));
  EXPECT_EQ(swift(mask + "--beta 0").actor.off_policy_mask_threshold, 0.5);
  EXPECT_EQ(swift(mask + "--kl_in_reward true").actor.off_policy_mask_threshold, 0.5);
}

}  // namespace
}  // namespace mortise::test
