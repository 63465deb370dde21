// verl's ppo_trainer: resolved YAML and Hydra overrides.
#include "foundation/base/choice.h"
#include "import_support.h"
#include "support/environment.h"

namespace mortise::test {
namespace {

RunConfig verl(std::string_view overrides) { return imported("verl", overrides, "run.sh"); }
std::string verl_error(std::string_view overrides) { return import_error("verl", overrides, "run.sh"); }

// GRPO, as every example of verl's begins.
constexpr std::string_view kGrpo = "algorithm.adv_estimator=grpo\n";
std::string grpo(std::string_view more) { return std::string(kGrpo) + std::string(more); }

TEST(ImportVerl, SequenceParallel) {
  const RunConfig config =
      verl(grpo("actor_rollout_ref.actor.ulysses_sequence_parallel_size=4\n"
                "actor_rollout_ref.actor.use_kl_loss=true\n"
                "actor_rollout_ref.ref.ulysses_sequence_parallel_size=2\n"));
  EXPECT_EQ(config.actor.ulysses_sequence_parallel_size, 4);
  EXPECT_EQ(config.ref.ulysses_sequence_parallel_size, 2);
  EXPECT_EQ(verl("critic.ulysses_sequence_parallel_size=8").critic.ulysses_sequence_parallel_size, 8);
  EXPECT_EQ(verl(kGrpo).ref.ulysses_sequence_parallel_size, std::nullopt) << "as the actor's";
}

TEST(ImportVerl, TensorParallel) {
  const auto size_of = [](const std::string& more) { return verl(grpo(more)).actor.tensor_model_parallel_size; };
  const std::string key = "actor_rollout_ref.actor.megatron.tensor_model_parallel_size=";
  EXPECT_EQ(size_of(key + "4"), 4);
  EXPECT_EQ(size_of(key + "1"), 1);
  EXPECT_EQ(size_of(""), 1);
  EXPECT_EQ(size_of("actor_rollout_ref.rollout.tensor_model_parallel_size=2"), 1) << "that of verl's sampler";
}

// verl's default is 2, and a run of one process must stay one. So ranks sample together only if the run needs several anyway.
TEST(ImportVerl, RolloutTensorParallel) {
  const std::string actor = "actor_rollout_ref.actor.megatron.tensor_model_parallel_size=";
  const std::string rollout = "actor_rollout_ref.rollout.tensor_model_parallel_size=";
  const auto size_of = [](const std::string& more) { return verl(grpo(more)).rollout.tensor_model_parallel_size; };
  EXPECT_EQ(size_of(actor + "4\n" + rollout + "4"), 4);
  EXPECT_EQ(size_of(actor + "4\n" + rollout + "2"), 2);
  EXPECT_EQ(size_of(actor + "4\n"), 1);
  EXPECT_EQ(size_of(actor + "4\n" + rollout + "4 actor_rollout_ref.rollout.multi_turn.enable=True"), 4);
  EXPECT_EQ(size_of(rollout + "2"), 1);
  ASSERT_OK_AND_ASSIGN(const ImportedConfig told, import_text("verl", grpo(rollout + "2"), "run.sh"));
  EXPECT_THAT(told.toml, HasSubstr("rollout.tensor_model_parallel_size = 2 lets 2 sample together"));
}

TEST(ImportVerl, SequenceParallelOfAnEngine) {
  for (const std::string engine : {"fsdp_config.ulysses_sequence_parallel_size", "veomni.ulysses_parallel_size"}) {
    SCOPED_TRACE(engine);
    const RunConfig config = verl(grpo("actor_rollout_ref.actor." + engine + "=4\nactor_rollout_ref.ref." + engine +
                                       "=2\nactor_rollout_ref.actor.use_kl_loss=true\n"));
    EXPECT_EQ(config.actor.ulysses_sequence_parallel_size, 4);
    EXPECT_EQ(config.ref.ulysses_sequence_parallel_size, 2);
    const std::string own = "actor_rollout_ref.actor.ulysses_sequence_parallel_size=";
    const auto both = [&](int size) {
      return verl(grpo(own + std::to_string(size) + "\nactor_rollout_ref.actor." + engine + "=4\n"));
    };
    EXPECT_EQ(both(1).actor.ulysses_sequence_parallel_size, 4);
    EXPECT_EQ(both(8).actor.ulysses_sequence_parallel_size, 8) << "wins, as in verl";
    EXPECT_EQ(verl(grpo("actor_rollout_ref.ref." + engine + "=1")).ref.ulysses_sequence_parallel_size, std::nullopt);
    for (const std::string table : {"", "model."}) {
      if (engine.starts_with("veomni") && !table.empty()) continue;
      EXPECT_EQ(verl("critic." + table + engine + "=2").critic.ulysses_sequence_parallel_size, 2);
    }
  }
  EXPECT_EQ(verl("critic.fsdp.ulysses_sequence_parallel_size=2").critic.ulysses_sequence_parallel_size, 2);
}

TEST(ImportVerl, TheWholeFileWithItsDefaultsImports) {
  ASSERT_OK_AND_ASSIGN(const std::string text,
                       default_env().read_file(Path(MORTISE_SOURCE_DIR) / "tests/golden/import/verl_ppo_trainer.yaml"));
  ASSERT_OK_AND_ASSIGN(const ImportedConfig result, import_text("verl", text, "ppo_trainer.yaml"));
  EXPECT_THAT(result.warnings, ElementsAre());
  const Environment home("HOME", "/home/me");
  const RunConfig config = config_of(result.toml);
  EXPECT_EQ(config.model.path, "/home/me/models/deepseek-llm-7b-chat");
  EXPECT_EQ(config.algorithm.adv_estimator, "gae");
  EXPECT_EQ(config.trainer.total_epochs, 30);
  EXPECT_EQ(config.trainer.default_local_dir, "checkpoints/verl_examples/gsm8k");
  EXPECT_EQ(choice_name(config.actor.loss_agg_mode), "token-mean");
  EXPECT_EQ(config.actor.clip_ratio_low, 0.2);
  EXPECT_EQ(config.actor.clip_ratio_high, 0.2);
  EXPECT_EQ(config.actor.clip_ratio_c, 3.0);
  EXPECT_EQ(choice_name(config.actor.optim.schedule_unit), "step");
  EXPECT_EQ(config.critic.cliprange_value, 0.5);
  EXPECT_EQ(choice_name(config.critic.loss_agg_mode), "token-mean");
  EXPECT_THAT(config.data.train_files, ElementsAre("~/data/rlhf/gsm8k/train.parquet"));
  EXPECT_THAT(config.data.val_files, ElementsAre("~/data/rlhf/gsm8k/test.parquet"));
  EXPECT_THAT(result.toml, HasSubstr("actor.fsdp_config.*"));

  // Equals the result of an empty file, except for the required settings.
  const RunConfig empty = verl("");
  EXPECT_EQ(config.actor, empty.actor);
  EXPECT_EQ(config.algorithm, empty.algorithm);
  DataConfig data = config.data;
  data.train_files = empty.data.train_files;
  data.val_files = empty.data.val_files;
  EXPECT_EQ(data, empty.data);
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
  EXPECT_EQ(choice_name(config.actor.loss_agg_mode), "seq-mean-token-mean") << "what verl forces";
  EXPECT_EQ(choice_name(config.actor.loss_agg_rows), "all");
  config =
      verl(grpo("actor_rollout_ref.actor.policy_loss.loss_mode=dro actor_rollout_ref.actor.policy_loss.dro_beta=0.1"));
  EXPECT_EQ(config.actor.policy_loss.params, Json({{"dro_beta", 0.1}}));
  EXPECT_THAT(verl_error("actor_rollout_ref.actor.policy_loss.loss_mode=mine"),
              HasSubstr("is not one of verl's losses"));
  EXPECT_THAT(verl_error("actor_rollout_ref.actor.policy_loss.loss_mode=bypass_mode"), HasSubstr("not supported"));
}

TEST(ImportVerl, RoutingReplay) {
  EXPECT_EQ(verl(grpo("")).actor.router_replay.mode, RouterReplay::kDisabled);
  EXPECT_EQ(verl(grpo("actor_rollout_ref.actor.router_replay.mode=R2")).actor.router_replay.mode, RouterReplay::kR2);
  EXPECT_EQ(verl(grpo("actor_rollout_ref.actor.router_replay.mode=R3 "
                      "actor_rollout_ref.rollout.enable_rollout_routing_replay=True"))
                .actor.router_replay.mode,
            RouterReplay::kR3);
  EXPECT_THAT(verl_error(grpo("actor_rollout_ref.actor.router_replay.replay_file=experts.pt")),
              HasSubstr("experts go from the sampler to the updates in memory"));
}

// Since version 0.9 verl reads loss_agg_mode with gspo; before, it took the mean over rows, as the paper does.
TEST(ImportVerl, GspoIsAggregatedAsTheFileSays) {
  const std::string gspo = grpo("actor_rollout_ref.actor.policy_loss.loss_mode=gspo ");
  ASSERT_OK_AND_ASSIGN(const ImportedConfig silent, import_text("verl", gspo, "run.sh"));
  EXPECT_EQ(choice_name(config_of(silent.toml).actor.loss_agg_mode), "seq-mean-token-mean");
  ASSERT_EQ(silent.warnings.size(), 1U);
  EXPECT_THAT(silent.warnings[0], HasSubstr("before 0.9"));
  for (const std::string mode : {"seq-mean-token-mean", "token-mean"}) {
    const std::string named = gspo + "actor_rollout_ref.actor.loss_agg_mode=" + mode;
    ASSERT_OK_AND_ASSIGN(const ImportedConfig said, import_text("verl", named, "run.sh"));
    EXPECT_EQ(choice_name(config_of(said.toml).actor.loss_agg_mode), mode);
    EXPECT_THAT(said.warnings, ElementsAre());
  }
}

TEST(ImportVerl, ACriticMayHaveAnAdapter) {
  const std::string gae = "algorithm.adv_estimator=gae critic.model.path=m ";
  EXPECT_EQ(verl(grpo(gae)).critic.model.lora_rank, 0);
  const CriticModelConfig model =
      verl(
          grpo(gae + "critic.model.lora_rank=8 critic.model.lora_alpha=32 critic.model.target_modules=[q_proj,v_proj]"))
          .critic.model;
  EXPECT_EQ(model.lora_rank, 8);
  EXPECT_EQ(model.lora_alpha, 32.0);
  EXPECT_EQ(model.target_modules, (std::vector<std::string>{"q_proj", "v_proj"}));
  EXPECT_EQ(verl(grpo(gae + "critic.model.lora_rank=8")).critic.model.target_modules,
            std::vector<std::string>{"all-linear"});
  const CriticModelConfig continued =
      verl(grpo(gae + "critic.model.lora_rank=8 critic.model.lora_adapter_path=a")).critic.model;
  EXPECT_EQ(continued.lora_adapter_path, "a");
  EXPECT_EQ(continued.lora_rank, 0);
}

TEST(ImportVerl, ExpertsMayHaveAnAdapter) {
  const std::string parameters = "target_parameters=[mlp.experts.down_proj] ";
  const RunConfig config =
      verl(grpo("algorithm.adv_estimator=gae critic.model.path=m critic.model.lora_rank=4 "
                "critic.model." +
                parameters + "actor_rollout_ref.model.lora_rank=8 actor_rollout_ref.model." + parameters));
  EXPECT_EQ(config.model.target_parameters, std::vector<std::string>{"mlp.experts.down_proj"});
  EXPECT_EQ(config.critic.model.target_parameters, std::vector<std::string>{"mlp.experts.down_proj"});
}

// verl has removed the engine that read it.
TEST(ImportVerl, TheOldOverSamplingHasNoEffect) {
  ASSERT_OK_AND_ASSIGN(const ImportedConfig result,
                       import_text("verl", grpo("actor_rollout_ref.rollout.over_sample_rate=0.1"), "run.sh"));
  EXPECT_THAT(result.toml, HasSubstr("rollout.over_sample_rate = 0.1"));
  EXPECT_EQ(config_of(result.toml).rollout.over_sampling, 1.0);
}

// Hydra refuses an unknown name, and so does the import, even next to the settings of an engine.
TEST(ImportVerl, MisspeltNamesAreErrors) {
  for (const char* name : {"actor_rollout_ref.rollout.temprature=0.7", "actor_rollout_ref.rollout.topp=0.9",
                           "actor_rollout_ref.ref.log_prob_batch=1", "critic.cliprange=0.2", "critic.optim.lrr=1e-5",
                           "reward.reward_kwarg=1", "reward_model.max_len=5"}) {
    EXPECT_THAT(verl_error(grpo(name)), HasSubstr("unknown setting ")) << name;
  }
  EXPECT_THAT(verl_error(grpo("actor_rollout_ref.rollout.temprature=0.7")), HasSubstr("temperature"));
}

TEST(ImportVerl, MisspeltNamesBelowATableAreErrors) {
  for (const char* name :
       {"critic.model.lora_alfa=8", "critic.model.tiled_mlp.shards=2", "critic.fsdp.param_ofload=True",
        "critic.profiler.ranks_=1", "actor_rollout_ref.actor.fsdp_config.param_ofload=True",
        "actor_rollout_ref.actor.fsdp_config.qat.enabled=True", "actor_rollout_ref.model.lora.rnk=8",
        "actor_rollout_ref.rollout.multi_turn.enabled=True", "actor_rollout_ref.rollout.engine_kwargs.vlm.seed=1",
        "reward_model.model.inputs=x", "trainer.v1.trainer_modes=sync", "distillation.enable=True",
        "skip.rollout.enabled=True", "algorithm.pf_ppo.power=2"}) {
    for (const char* estimator : {"grpo", "gae"}) {  // without and with a critic
      EXPECT_THAT(verl_error("algorithm.adv_estimator=" + std::string(estimator) + " +" + name),
                  HasSubstr("unknown setting "))
          << name;
    }
  }
  EXPECT_THAT(verl_error(grpo("critic.model.use_remove_paddin=True")), HasSubstr("did you mean 'critic.model.use_rem"));
  EXPECT_THAT(import_error("verl", "critic: {fsdp: {wrap_policy: {min_params: 1}}}"),
              HasSubstr("peer.yaml:1:31: unknown setting 'critic.fsdp.wrap_policy.min_params'"));
}

// Settings for another library have no list of names. The report lists each by its own name.
TEST(ImportVerl, NamesOfOpenTablesAreToldOneByOne) {
  const std::string toml = imported_toml("verl",
                                         grpo("+actor_rollout_ref.rollout.engine_kwargs.vllm.swap_space=4 "
                                              "+actor_rollout_ref.actor.megatron.override_transformer_config.depth=2 "
                                              "actor_rollout_ref.actor.fsdp_config.param_offload=True"),
                                         "run.sh");
  EXPECT_THAT(toml, HasSubstr("#   actor_rollout_ref.rollout.engine_kwargs.vllm.swap_space = 4 (run.sh:2): "));
  EXPECT_THAT(toml, HasSubstr("override_transformer_config.depth = 2 (run.sh:2): "));
  EXPECT_THAT(toml, HasSubstr("#   actor.fsdp_config.* (run.sh:2): "));
}

// A resolved file has all of the critic's keys, which follow the actor's, also where no critic is built.
TEST(ImportVerl, WithoutACriticItsSettingsCountForNothing) {
  const std::string text =
      "algorithm: {adv_estimator: grpo}\n"
      "actor_rollout_ref: {actor: {shuffle: true, loss_agg_mode: seq-mean-token-sum-norm, loss_scale_factor: 64}}\n"
      "critic: {shuffle: '${actor_rollout_ref.actor.shuffle}', optim: {clip_grad: 0.5, lr: 1},\n"
      "         loss_scale_factor: '${actor_rollout_ref.actor.loss_scale_factor}'}\n";
  ASSERT_OK_AND_ASSIGN(const ImportedConfig result, import_text("verl", text));
  EXPECT_THAT(result.warnings, ElementsAre());
  EXPECT_THAT(result.toml, HasSubstr("#   critic.* (peer.yaml:3:10): algorithm.adv_estimator asks for no values"));
  EXPECT_EQ(config_of(result.toml).critic, RunConfig().critic);
  const std::string with_critic = import_error("verl", text.substr(text.find('\n') + 1));
  EXPECT_THAT(with_critic, HasSubstr("'critic.shuffle = true' is not supported"));
  EXPECT_THAT(with_critic, HasSubstr("'critic.loss_scale_factor = 64' is not supported"));
}

TEST(ImportVerl, TheOlderNameOfTheScheduleWins) {
  const std::string both = "actor_rollout_ref.actor.optim.lr_scheduler_type=constant ";
  EXPECT_EQ(
      choice_name(verl(grpo(both + "actor_rollout_ref.actor.optim.warmup_style=cosine")).actor.optim.lr_scheduler_type),
      "cosine");
  EXPECT_EQ(
      choice_name(verl(grpo(both + "actor_rollout_ref.actor.optim.warmup_style=null")).actor.optim.lr_scheduler_type),
      "constant");
  const RunConfig critic = verl(
      "critic.optim.lr_scheduler_type=constant critic.optim.warmup_style=cosine critic.optim.min_lr_ratio=0.2 "
      "critic.optim.lr_warmup_steps_ratio=0.1");
  EXPECT_EQ(choice_name(critic.critic.optim.lr_scheduler_type), "cosine");
  EXPECT_EQ(critic.critic.optim.min_lr_ratio, 0.2);
  EXPECT_EQ(critic.critic.optim.lr_warmup_steps_ratio, 0.1);
  EXPECT_EQ(choice_name(critic.critic.optim.schedule_unit), "step");
  EXPECT_THAT(verl_error("critic.optim.warmup_style=linear"), HasSubstr("'linear' is not one of verl's schedules"));
}

// verl's sampler gets the temperature, and nothing gets do_sample.
TEST(ImportVerl, ValidationSamplesByItsTemperature) {
  const std::string table = "actor_rollout_ref.rollout.val_kwargs.";
  EXPECT_FALSE(verl(grpo("")).rollout.val_kwargs.do_sample);
  EXPECT_FALSE(verl(grpo(table + "do_sample=True")).rollout.val_kwargs.do_sample) << "the temperature is 0";
  const RunConfig config = verl(grpo(table + "temperature=0.7 " + table + "top_p=0.9"));
  EXPECT_TRUE(config.rollout.val_kwargs.do_sample);
  EXPECT_EQ(config.rollout.val_kwargs.temperature, 0.7);
  EXPECT_EQ(config.rollout.val_kwargs.top_p, 0.9);
}

TEST(ImportVerl, TokensOfAPassAreThoseOfVllm) {
  EXPECT_EQ(verl(grpo("")).rollout.max_num_batched_tokens, std::nullopt) << "the default of our own device";
  const std::string key = "actor_rollout_ref.rollout.max_num_batched_tokens=";
  EXPECT_EQ(verl(grpo(key + "16384")).rollout.max_num_batched_tokens, 16384);
}

TEST(ImportVerl, WhatStandsForNothingIsNotKept) {
  EXPECT_THAT(import_error("verl", "data: {train_files: ['${data.dir}/a.jsonl']}"), HasSubstr("is not resolved"));
  EXPECT_THAT(import_error("verl", "actor_rollout_ref: {model: {path: '?\?\?'}}"), HasSubstr("is not resolved"));
  EXPECT_THAT(import_error("verl", "data: {train_batch_size: 8}\ndata.train_batch_size: 16"),
              HasSubstr("peer.yaml:2:1: 'data.train_batch_size' is given twice: also at peer.yaml:1:8"));
  EXPECT_THAT(verl_error(grpo("actor_rollout_ref.actor.optim.lr=1 actor.optim.lr=2")), HasSubstr("is given twice"));
  EXPECT_THAT(verl_error(grpo("+actor_rollout_ref.model.override_config.model_config.rope_theta=1")),
              HasSubstr("model_config would change the model"));
  for (const char* older :
       {"actor_rollout_ref.actor.optim.grad_clip=1", "actor_rollout_ref.actor.use_rollout_log_probs=True",
        "actor_rollout_ref.rollout.agent.custom_async_server.path=a.py"})
    EXPECT_THAT(verl_error(grpo(older)), HasSubstr("is not supported: ")) << older;
}

TEST(ImportVerl, AnOlderCapOfTokenWeightsIsTheirThreshold) {
  const std::string cap = "actor_rollout_ref.actor.tis_imp_ratio_cap=";
  const RolloutCorrectionConfig kept = verl(grpo(cap + "2.5")).algorithm.rollout_correction;
  EXPECT_EQ(kept.rollout_is, WeightLevel::kToken);
  EXPECT_EQ(kept.rollout_is_threshold, "2.5");
  EXPECT_EQ(verl(grpo(cap + "-1")).algorithm.rollout_correction.rollout_is, std::nullopt);
  EXPECT_THAT(verl_error(grpo(cap + "2 algorithm.rollout_correction.rollout_is=token")),
              HasSubstr("both weight tokens"));
}

// The import does not have the file of defaults that a command names.
TEST(ImportVerl, OtherDefaultsAreTold) {
  const auto import = [](const std::string& options) {
    return import_text("verl", "python3 -m verl.trainer.main_ppo " + options + " algorithm.adv_estimator=grpo",
                       "run.sh");
  };
  for (const char* options :
       {"--config-name=dapo_trainer", "--config-path conf --config-name dapo_trainer", "-cn dapo_trainer"}) {
    ASSERT_OK_AND_ASSIGN(const ImportedConfig other, import(options));
    EXPECT_THAT(other.warnings, ElementsAre(HasSubstr("the file 'dapo_trainer' is not read"))) << options;
    EXPECT_EQ(config_of(other.toml).algorithm.adv_estimator, "grpo");
  }
  ASSERT_OK_AND_ASSIGN(const ImportedConfig same, import("--config-name=ppo_trainer.yaml"));
  EXPECT_THAT(same.warnings, ElementsAre());
}

TEST(ImportVerl, APunishmentThatGrowsOnIsTold) {
  const auto warnings_of = [](const std::string& limit) {
    const auto result = import_text("verl",
                                    grpo("reward_model.reward_manager=dapo +reward_model.reward_kwargs="
                                         "{overlong_buffer_cfg:{enable:True,len:100},max_resp_len:" +
                                         limit + "}"),
                                    "run.sh");
    return result ? result->warnings : std::vector<std::string>{result.error().to_string()};
  };
  EXPECT_THAT(warnings_of("512"), ElementsAre());
  EXPECT_THAT(warnings_of("400"), ElementsAre(HasSubstr("beyond it the punishment there grows on")));
}

TEST(ImportVerl, WhatTheCriticDoesOtherwiseIsRefused) {
  EXPECT_THAT(verl_error("critic.optim.clip_grad=0.5"), HasSubstr("differs from "));
  for (const char* setting :
       {"critic.model.external_lib=my.lib", "critic.model.override_config={dropout:1}", "critic.shuffle=True"})
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
  EXPECT_EQ(decoupled.algorithm.rollout_correction.rollout_is, WeightLevel::kToken);
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

TEST(ImportVerl, AReferenceOfItsOwn) {
  const std::string path = "+actor_rollout_ref.ref.model.path=/models/sft ";
  EXPECT_EQ(verl(grpo(path + "actor_rollout_ref.actor.use_kl_loss=True")).ref.path, "/models/sft");
  EXPECT_EQ(verl(grpo(path)).ref.path, std::nullopt) << "there is no KL";
  EXPECT_EQ(verl(grpo(path + "actor_rollout_ref.actor.use_kl_loss=True actor_rollout_ref.model.lora_rank=8")).ref.path,
            std::nullopt)
      << "verl takes the policy without its adapter";
}

// verl forces the aggregation of these losses only. Its KL and entropy terms keep loss_agg_mode.
TEST(ImportVerl, TermsKeepTheirAggregationIfTheLossIgnoresIt) {
  const std::string actor = "actor_rollout_ref.actor.";
  const std::string both = " " + actor + "use_kl_loss=True " + actor + "entropy_coeff=0.01 ";
  for (const std::string loss : {"sapo", "geo_mean"}) {
    const std::string mode = actor + "policy_loss.loss_mode=" + loss + both;
    RunConfig config = verl(grpo(mode));
    EXPECT_EQ(choice_name(config.actor.loss_agg_mode), "seq-mean-token-mean");
    EXPECT_EQ(choice_name(config.actor.kl_agg_mode), "token-mean");
    EXPECT_EQ(choice_name(config.actor.entropy_agg_mode), "token-mean");
    config = verl(grpo(mode + actor + "loss_agg_mode=seq-mean-token-mean"));
    EXPECT_TRUE(config.actor.kl_agg_mode.is_auto());
    config = verl(grpo(mode + actor + "loss_agg_mode=seq-mean-token-sum-norm " + actor + "loss_scale_factor=512"));
    EXPECT_EQ(choice_name(config.actor.kl_agg_mode), "seq-mean-token-sum-norm");
    EXPECT_EQ(config.actor.loss_scale_factor, 512.0) << "which the terms divide by";
    EXPECT_TRUE(verl(grpo(actor + "policy_loss.loss_mode=" + loss)).actor.entropy_agg_mode.is_auto());
  }
  EXPECT_TRUE(verl(grpo(both)).actor.kl_agg_mode.is_auto()) << "vanilla reads loss_agg_mode";
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
  EXPECT_EQ(choice_name(config.actor.optim.lr_scheduler_type), "cosine");
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
  EXPECT_THAT(config.trainer.logger, ElementsAre(LogTarget::kConsole, LogTarget::kWandb));
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

// The model's score replaces the scorers, whatever manager is named.
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

TEST(ImportVerl, TurnsKeepTheirLimitsAndVerlsSingleCall) {
  const std::string table = " actor_rollout_ref.rollout.multi_turn.";
  const MultiTurnConfig turns =
      verl(grpo(table + "enable=True" + table + "max_assistant_turns=5" + table + "max_user_turns=4" + table +
                "max_tool_response_length=1000" + table + "tool_response_truncate_side=left" + table +
                "format=qwen3_coder actor_rollout_ref.rollout.agent.default_agent_loop=tool_agent"))
          .rollout.multi_turn;
  EXPECT_TRUE(turns.enable);
  EXPECT_EQ(turns.max_assistant_turns, 5);
  EXPECT_EQ(turns.max_user_turns, 4);
  EXPECT_EQ(turns.max_parallel_calls, 1) << "verl's default";
  EXPECT_EQ(turns.max_tool_response_length, 1000);
  EXPECT_EQ(choice_name(turns.tool_response_truncate_side), "left");
  EXPECT_EQ(choice_name(turns.format), "qwen3_coder");
  const MultiTurnConfig channels = verl(grpo(table + "enable=True" + table + "format=gpt-oss")).rollout.multi_turn;
  EXPECT_EQ(channels.format, ToolFormat::kGptOss);
  EXPECT_FALSE(verl(grpo("")).rollout.multi_turn.max_parallel_calls) << "a run of one turn says nothing of them";
}

TEST(ImportVerl, WhatWouldChangeTheNumbersIsRefused) {
  for (const char* setting :
       {"actor_rollout_ref.rollout.quantization=fp8", "distillation.enabled=True",
        "trainer.v1.trainer_mode=colocate_async", "actor_rollout_ref.actor.qat.enable=True",
        "actor_rollout_ref.rollout.do_sample=False", "actor_rollout_ref.model.external_lib=my.lib"}) {
    EXPECT_THAT(verl_error(grpo(setting)), HasSubstr("is not supported: ")) << setting;
  }
  EXPECT_THAT(verl_error(grpo("actor_rollout_ref.model.override_config.rope_theta=1")),
              HasSubstr("would change the model"));
  EXPECT_THAT(import_error("verl", "trainer: {total_epochs: \"${oc.env:EPOCHS}\"}"), HasSubstr("is not resolved"));
}

// These trainers sample ahead. A script names one by its module or by the file of its defaults.
TEST(ImportVerl, TrainersThatSampleAhead) {
  const std::string arguments = " algorithm.adv_estimator=grpo rollout.nnodes=1 rollout.n_gpus_per_node=2 ";
  const auto script = [&](const std::string& module, const std::string& more) {
    return "python3 -m " + module + arguments + more;
  };
  for (const char* module : {"recipe.one_step_off_policy.main_ppo", "verl.experimental.one_step_off_policy.main_ppo"})
    EXPECT_EQ(verl(script(module, "")).trainer.mode, TrainMode::kOneStepOff) << module;
  EXPECT_EQ(verl(script("my.main_ppo", "--config-name=one_step_off_ppo_megatron_trainer.yaml")).trainer.mode,
            TrainMode::kOneStepOff);
  EXPECT_EQ(verl(script("verl.trainer.main_ppo", "")).trainer.mode, TrainMode::kSync);
  EXPECT_EQ(
      imported("verl", "algorithm: {adv_estimator: grpo}\nactor_rollout_ref: {hybrid_engine: false}").trainer.mode,
      TrainMode::kOneStepOff)
      << "a resolved file does not name its trainer";
  const std::string fully =
      "data.gen_batch_size=1 data.train_batch_size=0 rollout.total_rollout_steps=512 "
      "async_training.staleness_threshold=0.5 async_training.partial_rollout=True";
  for (const std::string& text : {script("verl.experimental.fully_async_policy.fully_async_main", fully),
                                  "algorithm.adv_estimator=grpo " + fully}) {
    const std::string error = verl_error(text);
    EXPECT_THAT(error, HasSubstr("the rows of an update depend on time"));
    EXPECT_THAT(error, HasSubstr("trainer.max_staleness"));
    EXPECT_THAT(error, Not(HasSubstr("unknown setting")));
    EXPECT_THAT(error, Not(HasSubstr("gen_batch_size")));
  }
}

// verl reads it only where it trains a critic.
TEST(ImportVerl, RowsAreDrawnByTheirScoresForGae) {
  const RunConfig drawn = verl("algorithm.use_pf_ppo=True algorithm.pf_ppo.reweight_method=max_min");
  EXPECT_TRUE(drawn.algorithm.use_pf_ppo);
  EXPECT_EQ(drawn.algorithm.pf_ppo.reweight_method, Reweight::kMaxMin);
  EXPECT_EQ(verl("algorithm.use_pf_ppo=True algorithm.pf_ppo.weight_pow=3").algorithm.pf_ppo.weight_pow, 3.0);
  EXPECT_FALSE(verl("algorithm.use_pf_ppo=True algorithm.adv_estimator=grpo").algorithm.use_pf_ppo);
}

}  // namespace
}  // namespace mortise::test
