// Rules between keys: what stops, what warns, and the batch arithmetic.
#include "config/check.h"

#include "config_test_support.h"

namespace mortise::test {
namespace {

constexpr const char* kGood = R"(
model.path = "m"
[data]
train_files = "t.jsonl"
val_files = "v.jsonl"
train_batch_size = 32
[actor]
ppo_mini_batch_size = 16
[rollout]
n = 8
[[reward]]
use = "regex"
)";

std::string check_error(const std::vector<std::string>& overrides, ConfigUse use = ConfigUse::kTrain) {
  Result<LoadedConfig> loaded = load(kGood, overrides);
  return loaded ? error_of(check_config(*loaded, use)) : "does not load: " + loaded.error().to_string();
}

std::vector<std::string> warnings(const std::vector<std::string>& overrides, ConfigUse use = ConfigUse::kTrain) {
  Result<LoadedConfig> loaded = load(kGood, overrides);
  if (!loaded) return {"does not load: " + loaded.error().to_string()};
  Result<std::vector<Error>> checked = check_config(*loaded, use);
  if (!checked) return {"refused: " + checked.error().to_string()};
  std::vector<std::string> lines;
  for (const Error& warning : *checked) lines.push_back(warning.to_string());
  return lines;
}

TEST(Check, AGoodConfigIsQuiet) {
  for (const ConfigUse use : {ConfigUse::kTrain, ConfigUse::kEval, ConfigUse::kGenerate, ConfigUse::kObjective}) {
    EXPECT_THAT(warnings({}, use), ElementsAre());
  }
  EXPECT_THAT(warnings({"sft.train_batch_size=32"}, ConfigUse::kSft), ElementsAre());
}

TEST(Check, WhatMustBeGiven) {
  ASSERT_OK_AND_ASSIGN(const LoadedConfig empty, load(""));
  const std::string train = error_of(check_config(empty, ConfigUse::kTrain));
  EXPECT_THAT(train, HasSubstr("'model.path' is not set"));
  EXPECT_THAT(train, HasSubstr("'data.train_files' is not set"));
  EXPECT_THAT(train, HasSubstr("there is no reward"));
  ASSERT_OK_AND_ASSIGN(const LoadedConfig none, load("data.train_files = []\n"));
  EXPECT_THAT(error_of(check_config(none, ConfigUse::kTrain)), HasSubstr("'data.train_files' is an empty list"));
  EXPECT_THAT(error_of(check_config(empty, ConfigUse::kEval)), HasSubstr("'data.val_files' is not set"));
  EXPECT_EQ(error_of(check_config(empty, ConfigUse::kObjective)), "ok");
  EXPECT_EQ(error_of(check_config(empty, ConfigUse::kGenerate)), "ok");
  EXPECT_THAT(check_error({"trainer.val_only=true", "data.val_files=[]"}),
              HasSubstr("'data.val_files' is an empty list"));
  const std::vector<std::string> no_folder = {"trainer.default_local_dir=\"\""};
  EXPECT_THAT(check_error(no_folder), HasSubstr("'trainer.default_local_dir' is empty, but a run needs a folder"));
  EXPECT_THAT(check_error(no_folder, ConfigUse::kEval), ::testing::Not(HasSubstr("is empty")));
  EXPECT_EQ(check_error({"trainer.val_only=true", "data.train_files=[]"}), "ok");
}

TEST(Check, FoldersAndNamesThatMustDiffer) {
  EXPECT_THAT(check_error({"trainer.rollout_data_dir=out/x", "trainer.validation_data_dir=out/y/../x/"}),
              HasSubstr("this is also trainer.rollout_data_dir"));
  EXPECT_THAT(warnings({"trainer.rollout_data_dir=out/x", "trainer.validation_data_dir=out/xy"}), ElementsAre());
  EXPECT_THAT(check_error({"reward.0.name=a/b"}), HasSubstr("the name 'a/b' has a '/'"));
}

TEST(Check, BatchesMustDivide) {
  EXPECT_EQ(
      check_error({"actor.ppo_mini_batch_size=64"}),
      "override 'actor.ppo_mini_batch_size=64': an update of 64 prompts does not fit into a step of 32 "
      "(actor.ppo_mini_batch_size, data.train_batch_size); set actor.ppo_mini_batch_size=32, or actor.carry_rows=true");
  EXPECT_THAT(check_error({"actor.ppo_mini_batch_size=12"}),
              HasSubstr("(32) is not a multiple of actor.ppo_mini_batch_size (12)"));
  EXPECT_EQ(check_error({"actor.ppo_mini_batch_size=12"}, ConfigUse::kSft), "ok");
  EXPECT_THAT(check_error({"data.train_batch_size=4611686018427387904"}), HasSubstr("too many: at most 16,777,216"));
  EXPECT_THAT(warnings({"actor.ppo_micro_batch_size_per_gpu=129"}),
              ElementsAre(HasSubstr("a pass of 129 rows is larger than an update, which has 128")));
  EXPECT_THAT(warnings({"actor.ppo_micro_batch_size_per_gpu=128"}), ElementsAre());
}

TEST(Check, GroupsOfParameters) {
  const std::string ends = "actor.optim.groups.ends.";
  EXPECT_EQ(check_error({ends + "match=lm_head|embed", ends + "lr=1e-7", ends + "weight_decay=0"}), "ok");
  EXPECT_EQ(check_error({ends + "match=lm_head", ends + "freeze=true"}), "ok");
  EXPECT_EQ(check_error({ends + "match=lm_head"}), "ok") << "a group that keeps its parameters from the others";
  const std::pair<std::vector<std::string>, const char*> cases[] = {
      {{ends + "freeze=true"}, "'actor.optim.groups.ends' has no match; set actor.optim.groups.ends.match = "},
      {{"actor.optim.groups.ends=1"}, "'actor.optim.groups.ends' is not a table"},
      {{ends + "match=(a", ends + "freeze=true"}, "'actor.optim.groups.ends.match' is not a regular expression: at "},
      {{ends + "match=a", ends + "freez=true"}, "unknown key 'actor.optim.groups.ends.freez'; did you mean 'freeze'?"},
      {{ends + "match=a", ends + "freeze=yes"}, "'actor.optim.groups.ends.freeze' must be of type true or false"},
      {{ends + "match=a", ends + "lr=-1"}, "'actor.optim.groups.ends.lr' must be at least 0"},
      {{ends + "match=a", ends + "freeze=true", ends + "lr=1e-7"}, "'actor.optim.groups.ends' is frozen, so its other"},
      {{ends + "match=a", ends + "lr=1e-7", ends + "lr_scale=2"}, "has both lr and lr_scale"},
      {{ends + "match=a", ends + "lr=1e-7", "actor.optim.lr=0"}, "cannot follow the schedule of 'actor.optim.lr'"},
      {{ends + "match=a", ends + "lr=1e-7", "actor.optim.optimizer=adafactor", "actor.optim.relative_step=true"},
       "'actor.optim.groups.ends.lr' has no effect, because 'actor.optim.relative_step' is true; set lr_scale"},
      {{ends + "match=a", ends + "optimizer=muon"},
       "needs 'actor.optim.optimizer' = \"muon\", which has both, but it is adamw"},
      {{ends + "match=a", ends + "optimizer=sgd", "actor.optim.optimizer=muon"}, "only between muon and adamw"},
      {{"critic.optim.groups.a.match=a", "critic.optim.groups.a.lr=x"},
       "'critic.optim.groups.a.lr' must be of type number"},
  };
  for (const auto& [settings, message] : cases) EXPECT_THAT(check_error(settings), HasSubstr(message));
  EXPECT_EQ(check_error({ends + "match=a", ends + "optimizer=adamw", "actor.optim.optimizer=muon"}), "ok");
}

TEST(Check, NormaliseThenSumNeedsGroups) {  // which estimators it suits is in train/run/check_plugins
  const std::string on = "algorithm.multi_objective_aggregation=normalize_then_sum";
  EXPECT_EQ(check_error({on}), "ok");
  EXPECT_EQ(check_error({on, "algorithm.adv_estimator=rloo"}), "ok");
  EXPECT_THAT(check_error({on, "rollout.n=1"}), HasSubstr("set rollout.n=2 or more"));
  EXPECT_THAT(check_error({"algorithm.multi_objective_aggregation=normalise_then_sum"}),
              HasSubstr("normalize_then_sum"));
}

TEST(Check, AllProblemsAtOnce) {
  const std::string error = check_error({"model.path=", "actor.ppo_mini_batch_size=12", "rollout.temperature=0"});
  EXPECT_THAT(error, HasSubstr("3 problems"));
}

TEST(Check, TokenBudget) {
  EXPECT_THAT(check_error({"actor.ppo_max_token_len_per_gpu=1023"}), HasSubstr("one row may have 1024 tokens"));
  EXPECT_EQ(check_error({"actor.ppo_max_token_len_per_gpu=1024"}), "ok");
  EXPECT_EQ(check_error({"actor.ppo_max_token_len_per_gpu=1023", "actor.ppo_micro_batch_size_per_gpu=4"}), "ok");
  EXPECT_THAT(check_error({"actor.ppo_max_token_len_per_gpu=1023", "actor.ppo_micro_batch_size_per_gpu=4",
                           "actor.use_dynamic_bsz=true"}),
              HasSubstr("one row may have 1024 tokens"));
  EXPECT_THAT(check_error({"rollout.response_length=20000", "actor.ppo_max_token_len_per_gpu=16384"}),
              HasSubstr("one row may have 20512 tokens"));
  EXPECT_EQ(check_error({"rollout.response_length=20000"}), "ok") << "unset, it is as long as the longest row";
}

TEST(Check, RestartsNeedAWholeDescent) {
  const std::string type = "actor.optim.lr_scheduler_type=cosine_with_restarts";
  EXPECT_THAT(check_error({type}), HasSubstr("'actor.optim.num_cycles' is 0.5: cosine_with_restarts needs at least 1"));
  EXPECT_EQ(check_error({type, "actor.optim.num_cycles=1"}), "ok");
}

TEST(Check, WhatBfloat16DoesNotGoWith) {
  const std::string dtype = "model.dtype=bfloat16", no_masters = "actor.optim.master_weights=false";
  EXPECT_EQ(check_error({dtype, "ranks.zero_stage=2", "model.layers=plain"}), "ok");
  EXPECT_EQ(check_error({dtype, "ranks.zero_stage=3", "model.lora_rank=2", "ref.offload=file", "ref.sync_steps=1"}),
            "ok");
  EXPECT_THAT(check_error({dtype, "model.layers=plain", "model.lora_rank=2"}), HasSubstr("no adapters in bfloat16"));
  EXPECT_EQ(check_error({dtype, no_masters}), "ok");
  EXPECT_EQ(check_error({dtype, no_masters, "ranks.zero_stage=1"}), "ok");
  EXPECT_EQ(check_error({dtype, no_masters, "critic.optim.master_weights=false", "ranks.zero_stage=3"}), "ok");
  EXPECT_EQ(check_error({dtype, no_masters, "model.layers=plain"}), "ok");
  EXPECT_THAT(check_error({dtype, "critic.model.lora_rank=4", "model.layers=plain"}),
              HasSubstr("the plain layers have no adapters in bfloat16"));
  EXPECT_EQ(check_error({"critic.model.lora_rank=4", "ranks.zero_stage=3"}), "ok") << "one process has all weights";
  EXPECT_EQ(check_error({no_masters, "ranks.zero_stage=1"}), "ok") << "a warning says that it has no effect";
}

TEST(Check, TensorParallelGoesWith) {
  const std::string size = "actor.tensor_model_parallel_size=2";
  EXPECT_EQ(check_error({size, "ranks.zero_stage=3"}), "ok");
  EXPECT_EQ(check_error({size, "ranks.zero_stage=2", "actor.ulysses_sequence_parallel_size=2", "model.lora_rank=2",
                         "model.enable_gradient_checkpointing=true", "actor.optim.optimizer=lion"}),
            "ok");
  EXPECT_EQ(check_error({size, "model.dtype=bfloat16"}), "ok");
  EXPECT_EQ(check_error({size, "model.dtype=bfloat16", "actor.optim.master_weights=false"}), "ok");
  EXPECT_EQ(check_error({size, "model.dtype=bfloat16", "model.lora_rank=2"}), "ok");
  EXPECT_EQ(check_error({size, "ranks.zero_stage=3", "model.lora_rank=2", "model.lora_dropout=0.1"}), "ok");
  EXPECT_EQ(check_error({size, "model.lora_rank=2", "model.use_dora=true"}), "ok");
  EXPECT_EQ(check_error({size, "model.lora_rank=2", "model.init_lora_weights=pissa",
                         "model.modules_to_save=[lm_head,o_proj]", "model.lora_bias=all", "ref.sync_steps=1"}),
            "ok");
  EXPECT_EQ(check_error({size, "model.lora_rank=2", "model.target_parameters=[mlp.experts.down_proj]"}), "ok");
  for (const std::string optimizer : {"adamw_8bit", "adafactor", "muon", "sgd"}) {
    EXPECT_EQ(check_error({size, "actor.optim.optimizer=" + optimizer, "actor.optim.offload=file", "ref.offload=file",
                           "ref.sync_steps=1"}),
              "ok")
        << optimizer;
  }
  EXPECT_EQ(check_error({size, "trainer.mode=one_step_off"}), "ok");
}

TEST(Check, WhatRanksThatSampleTogetherDoNotGoWith) {
  const std::string size = "rollout.tensor_model_parallel_size=2";
  EXPECT_EQ(check_error({size, "rollout.dtype=bfloat16", "model.lora_rank=2", "ranks.zero_stage=3"}), "ok");
  EXPECT_EQ(check_error({size, "actor.tensor_model_parallel_size=2", "ranks.zero_stage=2"}), "ok");
  EXPECT_EQ(check_error({size, "actor.tensor_model_parallel_size=4", "model.dtype=bfloat16"}), "ok");
  EXPECT_EQ(check_error({size, "model.dtype=bfloat16", "actor.optim.master_weights=false"}), "ok");
  EXPECT_EQ(check_error({size, "rollout.over_sampling=1.5"}), "ok");
  const std::string ahead = check_error({size, "trainer.mode=one_step_off"});
  EXPECT_THAT(ahead, HasSubstr("'trainer.mode'"));
  EXPECT_THAT(ahead, HasSubstr("cannot be used with rollout.tensor_model_parallel_size = 2"));
  const std::vector<std::string> validates{"trainer.val_only=true", "data.val_files=[\"val.jsonl\"]", size};
  for (const std::string setting : {"rollout.over_sampling=1.5", "trainer.mode=one_step_off"}) {
    std::vector<std::string> all = validates;
    all.emplace_back(setting);
    EXPECT_EQ(check_error(all), "ok") << "a validation does not sample ahead";
  }
}

TEST(Check, Errors) {
  EXPECT_THAT(check_error({"actor.clip_ratio_c=0.5"}), HasSubstr("it must be above 1"));
  EXPECT_EQ(check_error({"actor.clip_ratio_c=0"}), "ok");
  EXPECT_THAT(check_error({"rollout.temperature=0"}), HasSubstr("but log-probabilities are divided by it"));
  EXPECT_EQ(check_error({"rollout.temperature=0"}, ConfigUse::kEval), "ok");
  EXPECT_EQ(check_error({"actor.use_kl_loss=true", "actor.kl_loss_type=full"}), "ok");
  EXPECT_THAT(check_error({"actor.use_kl_loss=true", "actor.kl_loss_type=full+"}), HasSubstr("use full"));
  EXPECT_THAT(check_error({"actor.use_kl_loss=true", "actor.kl_loss_type=full", "actor.kl_params.max_kl=3"}),
              HasSubstr("'actor.kl_params' is for an estimator"));
  EXPECT_EQ(config_of("", {"algorithm.use_kl_in_reward=true", "algorithm.kl_params.max_kl=3"}).algorithm.kl_params,
            Json({{"max_kl", 3}}));
  EXPECT_THAT(check_error({"algorithm.use_kl_in_reward=true", "algorithm.kl_penalty=full"}),
              HasSubstr("works only in the loss"));
  EXPECT_THAT(check_error({"rollout.min_new_tokens=513"}), HasSubstr("more than the longest completion (512)"));
  EXPECT_THAT(check_error({"rollout.stop=[\"x\"]", "rollout.ignore_eos=true"}), HasSubstr("keeps them from ending"));
  EXPECT_THAT(check_error({"rollout.structured_outputs_regex=a", "rollout.ignore_eos=true"}),
              HasSubstr("keeps them from ending"));
  EXPECT_THAT(check_error({"rollout.structured_outputs_regex=''"}), HasSubstr("is empty"));
  EXPECT_THAT(check_error({"rollout.structured_outputs_regex=a", "rollout.filtered_log_probs=true", "rollout.top_k=5"}),
              HasSubstr("does not work with 'rollout.structured_outputs_regex'"));
  EXPECT_THAT(check_error({"rollout.structured_outputs_regex=a", "rollout.over_sampling=1.5"}),
              HasSubstr("'rollout.structured_outputs_regex' needs whole completions"));
  EXPECT_THAT(check_error({"rollout.dtype=bfloat16", "model.dtype=float64"}),
              HasSubstr("Only a float32 model can sample in another format"));
  EXPECT_EQ(check_error({"rollout.dtype=bfloat16", "rollout.deterministic=true"}), "ok");
  EXPECT_EQ(check_error({"rollout.dtype=bfloat16", "model.dtype=bfloat16", "rollout.kernels=avx2"}), "ok");
  EXPECT_THAT(check_error({"rollout.dtype=float32", "model.dtype=bfloat16"}),
              HasSubstr("Only a float32 model can sample in another format"));
  EXPECT_THAT(check_error({"rollout.kernels=plain", "rollout.dtype=bfloat16"}),
              HasSubstr("override 'rollout.kernels=plain': 'rollout.kernels' is plain, but the plain path has no"));
  EXPECT_THAT(check_error({"model.layers=plain", "model.enable_gradient_checkpointing=true"}),
              HasSubstr("only the fast layers can be recomputed"));
  EXPECT_THAT(check_error({"rollout.kernels=avx2", "model.dtype=float64"}), HasSubstr("computes in float32"));
  for (const char* dtype : {"model.dtype=float32", "model.dtype=float64", "rollout.dtype=float32"})
    EXPECT_EQ(check_error({"rollout.kernels=plain", dtype}), "ok") << dtype;
  EXPECT_THAT(check_error({"rollout.stop=[\"x\", \"\"]"}), HasSubstr("'rollout.stop' contains an empty text"));
  EXPECT_THAT(check_error({"rollout.bad_words=[\"\"]"}), HasSubstr("'rollout.bad_words' contains an empty text"));
  EXPECT_THAT(check_error({"trainer.resume_mode=resume_path"}), HasSubstr("set trainer.resume_from_path"));
  EXPECT_THAT(check_error({"reward.1.use=regex"}), HasSubstr("two rewards are named 'regex'"));
  EXPECT_EQ(check_error({"reward.1.use=python", "reward.1.function=a", "reward.2.use=python", "reward.2.function=b"}),
            "ok");
  EXPECT_THAT(
      check_error({"reward.1.use=python", "reward.1.function=a", "reward.2.use=acme/python", "reward.2.function=a"}),
      HasSubstr("two rewards are named 'a'; give one of them another name, as in name = \"a_2\""));
  EXPECT_EQ(check_error({"reward.1.use=regex", "reward.1.name=other"}), "ok");
  EXPECT_THAT(check_error({"sft.stop_val_accuracy=0.3"}, ConfigUse::kSft),
              HasSubstr("needs validations during the run"));
  EXPECT_THAT(check_error({"sft.stop_val_accuracy=0.3", "~data.val_files"}, ConfigUse::kSft),
              HasSubstr("needs validation rows"));
  EXPECT_EQ(check_error({"sft.stop_val_accuracy=0.3", "sft.test_freq=5"}, ConfigUse::kSft), "ok");
}

// Told with their places before anything is loaded, in a dry run and in `objective eval` too.
TEST(Check, RulesOfTheRolloutCorrection) {
  const std::string table = "algorithm.rollout_correction.";
  for (const ConfigUse use : {ConfigUse::kTrain, ConfigUse::kObjective}) {
    EXPECT_THAT(check_error({table + "rollout_rs=token_k9", table + "rollout_rs_threshold=1"}, use),
                HasSubstr("override 'algorithm.rollout_correction.rollout_rs=token_k9': "
                          "'algorithm.rollout_correction.rollout_rs' names an unknown statistic, 'token_k9'"));
    EXPECT_THAT(check_error({table + "rollout_is=token", table + "rollout_is_threshold=5_2"}, use),
                HasSubstr("override 'algorithm.rollout_correction.rollout_is_threshold=5_2': "));
    EXPECT_THAT(check_error({table + "rollout_rs=token_k1"}, use), HasSubstr("is not set, but rollout_rs needs it"));
    EXPECT_EQ(check_error({table + "rollout_rs=token_k1,seq_max_k2", table + "rollout_rs_threshold=0.5_2,3"}, use),
              "ok");
  }
}

TEST(Check, AnAdaptersReferenceStays) {
  EXPECT_EQ(check_error({"ref.sync_steps=2", "model.lora_rank=4"}), "ok");
  EXPECT_EQ(check_error({"ref.sync_steps=2"}), "ok");
}

TEST(Check, SizesHaveLimits) {
  EXPECT_THAT(check_error({"rollout.n=65537"}), HasSubstr("'rollout.n' must be at least 1 and at most 65536"));
  EXPECT_THAT(check_error({"rollout.val_kwargs.n=65537"}), HasSubstr("at most 65536"));
  EXPECT_THAT(check_error({"actor.optim.num_cycles=1e308"}), HasSubstr("must be above 0 and at most 1000000"));
  EXPECT_THAT(check_error({"rollout.temperature=1e-300"}), HasSubstr("logits divided by it overflow"));
  EXPECT_THAT(
      check_error({"rollout.temperature=1e60"}),
      HasSubstr("override 'rollout.temperature=1e60': 'rollout.temperature' must be at least 0 and at most 1000000"));
  EXPECT_EQ(check_error({"rollout.temperature=1e6", "rollout.top_k=9223372036854775807", "rollout.top_p=1e-300",
                         "rollout.typical_p=1e-300", "rollout.presence_penalty=-1e6", "rollout.frequency_penalty=1e6",
                         "rollout.repetition_penalty=1e6"}),
            "ok");
  EXPECT_THAT(check_error({"rollout.val_kwargs.do_sample=true", "rollout.val_kwargs.temperature=1e-300"}),
              HasSubstr("logits divided by it overflow"));

  ASSERT_OK_AND_ASSIGN(const LoadedConfig many, load(kGood, {"rollout.val_kwargs.n=4096"}));
  ASSERT_OK(check_num_rows(many, 4096, "rollout.val_kwargs.n"));
  ASSERT_OK(check_num_rows(many, kMaxRows / 8, "rollout.n"));
  EXPECT_EQ(
      error_of(check_num_rows(many, 4097, "rollout.val_kwargs.n")),
      "override 'rollout.val_kwargs.n=4096': 4,097 prompts with 4,096 completions each (rollout.val_kwargs.n) are "
      "too many: at most 16,777,216 at once; lower rollout.val_kwargs.n or the number of prompts");
}

TEST(Check, TheWholeRunHasALimit) {
  const auto error = [](const std::vector<std::string>& overrides, int64_t prompts) {
    Result<LoadedConfig> loaded = load(kGood, overrides);
    return loaded ? error_of(check_run_length(*loaded, prompts)) : loaded.error().to_string();
  };
  EXPECT_EQ(error({}, 1'000'000'000), "ok");
  EXPECT_THAT(error({"trainer.total_epochs=1000000000", "actor.ppo_epochs=1000000"}, 1'000'000),
              HasSubstr("override 'trainer.total_epochs=1000000000': the run would have"));
  EXPECT_THAT(error({"trainer.total_training_steps=9223372036854775807"}, 32),
              HasSubstr("lower trainer.total_training_steps"));
  EXPECT_EQ(error({"trainer.total_training_steps=4503599627370496"}, 32), "ok") << "2^52 steps of two updates";
}

TEST(Check, SftTellsWhatItDoesNotRead) {
  const auto sft = [](std::vector<std::string> overrides) {
    overrides.push_back("sft.train_batch_size=32");
    return warnings(overrides, ConfigUse::kSft);
  };
  EXPECT_THAT(sft({"trainer.val_only=true"}), ElementsAre(HasSubstr("use `mortise eval`")));
  EXPECT_THAT(sft({"trainer.total_training_steps=5"}), ElementsAre(HasSubstr("sft.total_training_steps")));
  EXPECT_THAT(sft({"trainer.total_training_steps=5", "sft.total_training_steps=5"}), ElementsAre());
  EXPECT_THAT(sft({"trainer.test_freq=5"}), ElementsAre(HasSubstr("sft.test_freq")));
  EXPECT_THAT(sft({"trainer.val_before_train=true"}),
              ElementsAre(HasSubstr("'trainer.val_before_train' has no effect")));
  EXPECT_THAT(sft({"trainer.val_before_train=false"}), ElementsAre());
  EXPECT_THAT(sft({"trainer.rollout_data_dir=x"}), ElementsAre(HasSubstr("'trainer.rollout_data_dir' has no effect")));
  EXPECT_THAT(sft({"trainer.validation_data_dir=x", "trainer.log_val_generations=3"}), ElementsAre());
  EXPECT_THAT(warnings({}, ConfigUse::kSft), ElementsAre(HasSubstr("'data.train_batch_size' has no effect")));
  EXPECT_THAT(sft({"reward=[]"}), ElementsAre(HasSubstr("the validation rows are not used")));
}

TEST(Check, EvalTellsWhatItsCommandLineAsksInVain) {
  EXPECT_THAT(warnings({"trainer.save_freq=5"}, ConfigUse::kEval),
              ElementsAre(HasSubstr("'trainer.save_freq' has no")));
  EXPECT_THAT(warnings({"trainer.validation_data_dir=x", "trainer.log_val_generations=3", "trainer.seed=1",
                        "trainer.num_threads=1"},
                       ConfigUse::kEval),
              ElementsAre());
}

TEST(Check, PassesOfReferenceAndCriticAreNotJudgedBeforeTheyAreKnownToBe) {
  EXPECT_EQ(check_error({"ref.log_prob_max_token_len_per_gpu=1023", "critic.ppo_max_token_len_per_gpu=1023"}), "ok");
}

struct WarnCase {
  std::vector<std::string> overrides;
  const char* message;
};

class CheckWarns : public ::testing::TestWithParam<WarnCase> {};

TEST_P(CheckWarns, Once) { EXPECT_THAT(warnings(GetParam().overrides), ElementsAre(HasSubstr(GetParam().message))); }

INSTANTIATE_TEST_SUITE_P(
    All, CheckWarns,
    ::testing::Values(
        WarnCase{{"reward.0.weight=0"}, "all rewards have weight 0"},
        WarnCase{{"actor.loss_agg_mode=token-mean", "actor.loss_scale_factor=8"},
                 "'actor.loss_scale_factor' has no effect"},
        WarnCase{{"actor.loss_agg_mode=token-mean", "actor.loss_scale_by_rows=false"},
                 "'actor.loss_scale_by_rows' has no effect"},
        WarnCase{{"actor.loss_agg_mode=token-mean", "actor.loss_agg_rows=all"}, "'actor.loss_agg_rows' has no effect"},
        WarnCase{{"algorithm.filter_groups.enable=true", "rollout.n=1"},
                 "'algorithm.filter_groups.enable' has no effect: rollout.n is 1"},
        WarnCase{{"actor.kl_loss_coef=0.1"}, "'actor.kl_loss_coef' has no effect: actor.use_kl_loss is false"},
        WarnCase{{"actor.use_kl_loss=true", "actor.kl_loss_coef=0"}, "kl_loss_coef is 0"},
        WarnCase{{"actor.use_kl_loss=true", "algorithm.use_kl_in_reward=true"}, "counts twice"},
        WarnCase{{"algorithm.kl_penalty=k3"}, "'algorithm.kl_penalty' has no effect"},
        WarnCase{{"algorithm.kl_params.max_kl=3"}, "'algorithm.kl_params' has no effect"},
        WarnCase{{"algorithm.use_kl_in_reward=true", "algorithm.kl_ctrl.target_kl=1"},
                 "algorithm.kl_ctrl.type is fixed"},
        WarnCase{{"actor.optim.min_lr_ratio=0.1"}, "lr_scheduler_type is constant"},
        WarnCase{{"actor.optim.lr_scheduler_type=linear", "actor.optim.num_cycles=1"}, "lr_scheduler_type is linear"},
        WarnCase{{"actor.optim.lr_warmup_steps=3", "actor.optim.lr_warmup_steps_ratio=0.1"}, "lr_warmup_steps wins"},
        WarnCase{{"actor.optim.lr=0"}, "nothing will be learned"},
        WarnCase{{"model.dtype=bfloat16", "critic.model.lora_rank=4", "critic.optim.master_weights=false"},
                 "'critic.optim.master_weights' has no effect: an adapter is trained, in float32"},
        WarnCase{{"actor.clip_ratio=0.1", "actor.clip_ratio_low=0.1", "actor.clip_ratio_high=0.2"},
                 "'actor.clip_ratio' has no effect"},
        WarnCase{{"actor.policy_loss.clip_ratio_c=4", "actor.clip_ratio_c=5"},
                 "'actor.clip_ratio_c' has no effect: actor.policy_loss.clip_ratio_c wins"},
        WarnCase{{"algorithm.adv_estimator=gae", "algorithm.lam=0.9", "algorithm.adv_params.lam=0.5"},
                 "'algorithm.lam' has no effect: algorithm.adv_params.lam wins"},
        WarnCase{{"preset=sapo", "actor.policy_loss.loss_agg_mode=token-mean"},
                 "'actor.policy_loss.loss_agg_mode' has no effect: actor.loss_agg_mode is seq-mean-token-mean"},
        WarnCase{{"actor.clip_ratio_low=0.1", "actor.policy_loss.clip_ratio_low=0.2"},
                 "actor.policy_loss.clip_ratio_low wins"},
        WarnCase{{"trainer.total_epochs=2", "trainer.total_training_steps=3"}, "trainer.total_training_steps wins"},
        WarnCase{{"trainer.resume_from_path=x"}, "trainer.resume_mode is auto"},
        WarnCase{{"trainer.zero_variance_limit=0.9", "algorithm.filter_groups.enable=true"},
                 "'trainer.zero_variance_limit' has no effect"},
        WarnCase{{"actor.optim.lr_scheduler_type=greedy", "actor.optim.lr_metric.name=eval_reward"},
                 "moves the rate after validations, and only the last step is validated"},
        WarnCase{{"rollout.val_kwargs.n=4"}, "greedy ones are all the same"},
        WarnCase{{"model.activation_memory_mib=64"}, "model.enable_gradient_checkpointing is false"},
        WarnCase{{"model.attention_backend=cudnn"},
                 "'model.attention_backend' has no effect: cuDNN computes attention of bfloat16 models alone"},
        WarnCase{{"rollout.enforce_eager=true"},
                 "'rollout.enforce_eager' has no effect: only a GPU has CUDA graphs (model.device)"},
        WarnCase{{"model.attention_backend=auto", "model.dtype=bfloat16", "model.device=cpu-as-device"},
                 "'model.attention_backend' has no effect: cuDNN computes attention on a GPU alone"},
        WarnCase{{"rollout.top_log_probs=3"}, "only `mortise generate` writes them"},
        WarnCase{{"rollout.val_kwargs.temperature=1"}, "validation is greedy"},
        WarnCase{{"rollout.val_kwargs.do_sample=true"}, "rollout.val_kwargs.temperature is 0: validation is greedy"},
        WarnCase{{"rollout.val_kwargs.do_sample=true", "rollout.val_kwargs.n=4"},
                 "set rollout.val_kwargs.temperature=1.0"},
        WarnCase{{"data.val_files=[]", "trainer.test_freq=3"}, "data.val_files is not given"},
        WarnCase{{"data.val_files=[]", "trainer.val_before_train=true"}, "data.val_files is not given"},
        WarnCase{{"actor.ppo_micro_batch_size_per_gpu=4", "actor.ppo_max_token_len_per_gpu=2048"},
                 "'actor.ppo_max_token_len_per_gpu' has no effect"},
        WarnCase{{"actor.ppo_micro_batch_size_per_gpu=4", "actor.use_dynamic_bsz=true"},
                 "'actor.ppo_micro_batch_size_per_gpu' has no effect"},
        WarnCase{{"ref.log_prob_micro_batch_size_per_gpu=4", "ref.log_prob_max_token_len_per_gpu=2048"},
                 "'ref.log_prob_max_token_len_per_gpu' has no effect: passes are cut by "
                 "ref.log_prob_micro_batch_size_per_gpu (set ref.log_prob_use_dynamic_bsz=true)"},
        WarnCase{{"actor.ppo_micro_batch_size_per_gpu=4", "ref.log_prob_max_token_len_per_gpu=2048"},
                 "passes are cut by actor.ppo_micro_batch_size_per_gpu (set ref.log_prob_use_dynamic_bsz=true)"},
        WarnCase{{"ref.log_prob_micro_batch_size_per_gpu=4", "ref.log_prob_use_dynamic_bsz=true"},
                 "'ref.log_prob_micro_batch_size_per_gpu' has no effect: ref.log_prob_use_dynamic_bsz cuts"},
        WarnCase{{"actor.ppo_micro_batch_size_per_gpu=4", "critic.ppo_max_token_len_per_gpu=2048"},
                 "'critic.ppo_max_token_len_per_gpu' has no effect: passes are cut by "
                 "actor.ppo_micro_batch_size_per_gpu (set actor.use_dynamic_bsz=true)"},
        WarnCase{{"actor.use_dynamic_bsz=true", "critic.ppo_micro_batch_size_per_gpu=4"},
                 "'critic.ppo_micro_batch_size_per_gpu' has no effect: actor.use_dynamic_bsz cuts passes by tokens"},
        WarnCase{{"critic.optim.min_lr_ratio=0.1"}, "critic.optim.lr_scheduler_type is constant"},
        WarnCase{{"actor.ppo_mini_batch_size=32", "actor.shuffle=true"}, "an update has all rows of its step"},
        WarnCase{{"data.shuffle=false", "data.seed=3"}, "'data.seed' has no effect: data.shuffle is false"},
        WarnCase{{"data.filter_overlong_prompts=true", "data.truncation=left"}, "'data.truncation' has no effect"},
        WarnCase{{"data.response_key=text"}, "only `mortise sft` and sft_mix.files read it"},
        WarnCase{{"sft.max_length=64"}, "'sft.max_length' has no effect: only `mortise sft` and sft_mix.files read it"},
        WarnCase{{"sft.assistant_only_loss=true"}, "'sft.assistant_only_loss' has no effect"},
        WarnCase{{"sft.completion_only_loss=true"}, "'sft.completion_only_loss' has no effect"},
        WarnCase{{"sft_mix.mu_peak=0.2"}, "sft_mix.files is empty"},
        WarnCase{{"sft_mix.files=rows.jsonl", "sft_mix.mu_decay_steps=3"}, "not another number than sft_mix.mu_peak"},
        WarnCase{{"sft_mix.files=rows.jsonl", "sft_mix.mu_peak=0.2", "sft_mix.mu_valley=0.1"},
                 "mu is sft_mix.mu_valley from the start"},
        WarnCase{{"data.val_files=[]", "data.val_max_samples=3"}, "data.val_files is not given"},
        WarnCase{{"data.val_files=[]", "rollout.val_kwargs.top_p=0.9"}, "'rollout.val_kwargs' has no effect"},
        WarnCase{{"data.val_files=[]", "trainer.validation_data_dir=x"}, "data.val_files is not given"},
        WarnCase{{"rollout.ignore_eos=true", "rollout.min_new_tokens=3"}, "'rollout.min_new_tokens' has no effect"},
        WarnCase{{"plugins.isolation=none", "reward.0.row_timeout=1s"},
                 "'reward.0.row_timeout' has no effect: plugins.isolation is none, so there are no workers"},
        WarnCase{{"plugins.isolation=none", "plugins.num_workers=2"}, "'plugins.num_workers' has no effect"}));

TEST(Check, AKeyOfGpusHasAnEffectWhereThereMayBeOne) {
  for (const char* device : {"cuda:1", "auto"})
    EXPECT_THAT(warnings({"rollout.enforce_eager=true", std::string("model.device=") + device}), ElementsAre())
        << device;
  EXPECT_THAT(warnings({"rollout.enforce_eager=false"}), ElementsAre()) << "files of other frameworks set it";
}

TEST(Check, GreedyCompletionsAreNotFiltered) {
  const std::vector<std::string> greedy{"rollout.temperature=0", "rollout.top_p=0.9", "rollout.n=1"};
  EXPECT_THAT(warnings(greedy, ConfigUse::kGenerate), ElementsAre(HasSubstr("'rollout.top_p' has no effect")));
  EXPECT_THAT(warnings({"rollout.top_p=0.9"}, ConfigUse::kGenerate), ElementsAre());
}

TEST(Check, WhatHasAnEffectDoesNotWarn) {
  EXPECT_THAT(warnings({"model.enable_gradient_checkpointing=true", "model.activation_memory_mib=64"}), ElementsAre());
  EXPECT_THAT(warnings({"data.val_files=[]", "trainer.val_before_train=false"}), ElementsAre());
  EXPECT_THAT(warnings({"data.val_files=[]", "trainer.validation_data_dir=null", "trainer.log_val_generations=0"}),
              ElementsAre());
  EXPECT_THAT(warnings({"actor.ppo_micro_batch_size_per_gpu=4", "ref.log_prob_use_dynamic_bsz=true",
                        "ref.log_prob_max_token_len_per_gpu=2048"}),
              ElementsAre());
  EXPECT_THAT(warnings({"critic.ppo_max_token_len_per_gpu=2048"}), ElementsAre());
  EXPECT_THAT(warnings({"data.filter_overlong_prompts=true", "data.truncation=error", "data.seed=3"}), ElementsAre());
  EXPECT_THAT(warnings({"actor.shuffle=true"}), ElementsAre());
  EXPECT_THAT(warnings({"sft.train_batch_size=4", "data.response_key=text", "sft.max_length=64"}), ElementsAre());
  EXPECT_THAT(warnings({"sft_mix.files=rows.jsonl", "data.messages_key=chat", "sft.max_length=64"}), ElementsAre());
  EXPECT_THAT(warnings({"actor.loss_agg_mode=token-mean", "critic.loss_agg_mode=seq-mean-token-sum-norm",
                        "actor.loss_scale_factor=8", "actor.loss_agg_rows=all"}),
              ElementsAre())
      << "the critic's loss takes them from there";
  EXPECT_THAT(
      warnings({"actor.loss_agg_mode=seq-mean-token-sum-norm", "actor.loss_scale_factor=8", "actor.loss_agg_rows=all"}),
      ElementsAre());
  EXPECT_THAT(warnings({"actor.use_kl_loss=true", "actor.kl_loss_coef=0.1", "actor.kl_loss_type=k1"}), ElementsAre());
  EXPECT_THAT(
      warnings({"actor.optim.lr_scheduler_type=cosine", "actor.optim.num_cycles=1", "actor.optim.min_lr_ratio=0.1"}),
      ElementsAre());
  EXPECT_THAT(
      warnings({"rollout.val_kwargs.n=4", "rollout.val_kwargs.do_sample=true", "rollout.val_kwargs.temperature=1"}),
      ElementsAre());
}

TEST(BatchPlan, Arithmetic) {
  const BatchPlan plan = plan_batches(config_of(kGood, {"actor.ppo_epochs=3"}));
  EXPECT_EQ(plan.prompts_per_step, 32);
  EXPECT_EQ(plan.rows_per_step, 256);
  EXPECT_EQ(plan.rows_per_update, 128);
  EXPECT_EQ(plan.updates_per_epoch_pass, 2);
  EXPECT_EQ(plan.updates_per_step, 6);
}

TEST(BatchPlan, UpdatesOfRowsMayCutGroups) {
  const auto cuts = [](const std::vector<std::string>& overrides) {
    return plan_batches(config_of(kGood, overrides)).cuts_groups;
  };
  EXPECT_FALSE(cuts({}));
  EXPECT_TRUE(cuts({"actor.rows_per_update=4"})) << "groups have 8 rows";
  EXPECT_FALSE(cuts({"actor.rows_per_update=16"}));
  EXPECT_TRUE(cuts({"actor.rows_per_update=16", "actor.shuffle=true"}));
  EXPECT_EQ(plan_batches(config_of(kGood, {"actor.rows_per_update=16"})).updates_per_step, 16);
}

TEST(BatchPlan, CarriedRowsNeedNotDivide) {
  EXPECT_EQ(check_error({"actor.ppo_mini_batch_size=12", "actor.carry_rows=true"}), "ok");
  EXPECT_EQ(check_error({"actor.ppo_mini_batch_size=64", "actor.carry_rows=true"}), "ok");
  EXPECT_EQ(check_error({"actor.rows_per_update=300", "actor.carry_rows=true"}), "ok");
  EXPECT_THAT(check_error({"actor.rows_per_update=16777217", "actor.carry_rows=true"}),
              HasSubstr("an update has more than 16,777,216 completions"));
  EXPECT_THAT(check_error({"actor.ppo_mini_batch_size=4611686018427387904", "actor.carry_rows=true"}),
              HasSubstr("an update has more than 16,777,216 completions"));
  EXPECT_THAT(check_error({"actor.rows_per_update=12"}), HasSubstr("or set actor.carry_rows=true"));
  EXPECT_THAT(warnings({"actor.carry_rows=true"}),
              ElementsAre(HasSubstr("the rows of an update divide those of a step")));
  const BatchPlan plan = plan_batches(config_of(kGood, {"actor.ppo_mini_batch_size=12", "actor.carry_rows=true"}));
  EXPECT_TRUE(plan.carries_rows);
  EXPECT_FALSE(plan.cuts_groups);
  EXPECT_DOUBLE_EQ(plan.mean_updates_per_step(), 32.0 / 12);
  EXPECT_FALSE(plan_batches(config_of(kGood, {"actor.carry_rows=true"})).carries_rows);
}

// Counted one row after the other, as TRL counts micro-steps.
TEST(BatchPlan, UpdatesOfStepsThatCarryRows) {
  const auto counted = [](int64_t rows_of_step, int64_t rows_of_update, int64_t steps_of_epoch, int64_t steps) {
    int64_t updates = 0, waiting = 0;
    for (int64_t step = 1; step <= steps; ++step) {
      waiting += rows_of_step;
      for (; waiting >= rows_of_update; waiting -= rows_of_update) ++updates;
      if (step % steps_of_epoch != 0) continue;
      if (waiting > 0) ++updates;
      waiting = 0;
    }
    return updates;
  };
  for (const int64_t rows : {7, 60, 96, 200, 513, 1000}) {
    for (const int64_t epochs : {1, 3}) {
      const std::string size = "actor.rows_per_update=" + std::to_string(rows),
                        passes = "actor.ppo_epochs=" + std::to_string(epochs);
      for (int64_t steps = 1; steps <= 12; ++steps) {  // an epoch of 165 prompts has 5
        const RunConfig config = config_of(
            kGood, {size, passes, "actor.carry_rows=true", "trainer.total_training_steps=" + std::to_string(steps)});
        EXPECT_EQ(plan_total_updates(config, 165), counted(256 * epochs, rows, 5, steps)) << size << " " << steps;
      }
      for (const int64_t updates : {1, 2, 3, 4, 5, 9, 17}) {
        const RunConfig config = config_of(kGood, {size, passes, "actor.carry_rows=true",
                                                   "trainer.total_training_updates=" + std::to_string(updates)});
        const int64_t steps = plan_total_steps(config, 165);
        EXPECT_EQ(plan_total_updates(config, 165), updates);
        EXPECT_GE(counted(256 * epochs, rows, 5, steps), updates) << size;
        EXPECT_LT(counted(256 * epochs, rows, 5, steps - 1), updates) << size;
        // A resume plans the same steps, wherever it is. What a run did not learn that ended earlier takes more of them.
        int64_t waiting = 0;
        for (int64_t done = 1; done <= steps; ++done) {
          const int64_t had = counted(256 * epochs, rows, 5, done - 1), has = counted(256 * epochs, rows, 5, done);
          waiting = done % 5 == 0 ? 0 : waiting + 256 * epochs - (has - had) * rows;
          if (has <= updates) {
            EXPECT_EQ(plan_total_steps(config, 165, {done, has, waiting}), steps) << size << " " << done;
          }
          if (done == steps) {
            EXPECT_EQ(plan_total_steps(config, 165, {done, updates, 0}), steps) << "it is over";
          }
          for (int64_t cut = had; cut < std::min(has, updates); ++cut) {
            const int64_t more = plan_total_steps(config, 165, {done, cut, 0});
            const auto reached = [&](int64_t end) {  // from an empty start at the same place of the epoch
              int64_t count = cut, rest = 0;
              for (int64_t step = done + 1; step <= end; ++step) {
                rest += 256 * epochs;
                count += rest / rows + (step % 5 == 0 && rest % rows > 0 ? 1 : 0);
                rest = step % 5 == 0 ? 0 : rest % rows;
              }
              return count;
            };
            EXPECT_GE(reached(more), updates) << size << " cut at " << cut << " of " << updates;
            EXPECT_LT(reached(more - 1), updates) << size << " cut at " << cut << " of " << updates;
          }
        }
      }
    }
  }
}

TEST(Check, ALengthInUpdatesIsTheOnlyOne) {
  EXPECT_EQ(check_error({"trainer.total_training_updates=5"}), "ok");
  EXPECT_THAT(check_error({"trainer.total_training_updates=5", "trainer.total_training_steps=5"}),
              HasSubstr("are both set; remove one of them"));
  EXPECT_THAT(check_error({"trainer.total_training_updates=5", "trainer.critic_warmup=2"}),
              HasSubstr("has steps without updates"));
}

TEST(BatchPlan, TotalSteps) {
  EXPECT_EQ(plan_total_steps(config_of(kGood, {"trainer.total_epochs=3"}), 100), 9)
      << "the last 4 rows of an epoch drop";
  EXPECT_EQ(plan_total_steps(config_of(kGood, {"trainer.total_epochs=1.5"}), 100), 5) << "4.5 steps, rounded up";
  EXPECT_EQ(plan_total_steps(config_of(kGood, {"trainer.total_epochs=0.01"}), 100), 1);
  EXPECT_EQ(plan_total_steps(config_of(kGood, {"trainer.total_training_steps=7"}), 100), 7);
  EXPECT_EQ(plan_total_steps(config_of(kGood), 31), 0);
}

}  // namespace
}  // namespace mortise::test
