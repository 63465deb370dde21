// Which runs let the first update of a step read what sampling has computed, and what the others say.
#include "train/run/reuse_rules.h"

#include <gtest/gtest.h>

#include <functional>

#include "model/layers/sampled_forward.h"
#include "unit/learn/moe_config.h"
#include "unit/train/tiny_model.h"

namespace mortise {
namespace {

RunConfig one_mini_batch() {
  RunConfig config;
  config.actor.ppo_mini_batch_size = config.data.train_batch_size;
  config.rollout.reuse_forward_mib = 1 << 20;
  return config;
}

TEST(ReuseRules, EveryReasonIsNamed) {
  const ModelConfig model = tiny_model(1).config();
  EXPECT_EQ(why_not_reused(one_mini_batch(), model, {}), std::nullopt);
  const std::vector<std::pair<std::string, std::function<void(RunConfig&)>>> cases = {
      {"reuse_forward_mib is 0", [](RunConfig& c) { c.rollout.reuse_forward_mib = 0; }},
      {"trainer.deterministic", [](RunConfig& c) { c.trainer.deterministic = true; }},
      {"only validates", [](RunConfig& c) { c.trainer.val_only = true; }},
      {"not native", [](RunConfig& c) { c.rollout.name = "replay"; }},
      {"trainer.mode", [](RunConfig& c) { c.trainer.mode = TrainMode::kOneStepOff; }},
      {"over_sampling", [](RunConfig& c) { c.rollout.over_sampling = 1.5; }},
      {"multi_turn", [](RunConfig& c) { c.rollout.multi_turn.enable = true; }},
      {"replay_buffer", [](RunConfig& c) { c.algorithm.replay_buffer.enable = true; }},
      {"use_pf_ppo", [](RunConfig& c) { c.algorithm.use_pf_ppo = true; }},
      {"bypass_mode",
       [](RunConfig& c) {
         c.actor.ppo_mini_batch_size = c.data.train_batch_size / 2;
         c.algorithm.rollout_correction.bypass_mode = true;
       }},
      {"a reference is compared",
       [](RunConfig& c) {
         c.model.dtype = ModelDtype::kBfloat16;
         c.actor.use_kl_loss = true;
       }},
      {"several updates",
       [](RunConfig& c) {
         c.model.dtype = ModelDtype::kBfloat16;
         c.actor.ppo_epochs = 2;
       }},
      {"model.dtype", [](RunConfig& c) { c.model.dtype = ModelDtype::kFloat64; }},
      {"rollout.dtype is bfloat16 and", [](RunConfig& c) { c.rollout.dtype = DecodeDtype::kBfloat16; }},
      {"rollout.kernels", [](RunConfig& c) { c.rollout.kernels = DecodeKernels::kPlain; }},
      {"model.layers", [](RunConfig& c) { c.model.layers = LayerPasses::kPlain; }},
      {"gradient_checkpointing", [](RunConfig& c) { c.model.enable_gradient_checkpointing = true; }},
  };
  for (const auto& [reason, change] : cases) {
    RunConfig config = one_mini_batch();
    change(config);
    const std::optional<std::string> said = why_not_reused(config, model, {});
    ASSERT_TRUE(said) << reason;
    EXPECT_NE(said->find(reason), std::string::npos) << *said;
    EXPECT_EQ(reuse_line(said), "# update: runs its own forward pass, because " + *said + "\n");
  }
  RunConfig several = one_mini_batch();
  several.actor.ppo_mini_batch_size = several.data.train_batch_size / 4;
  EXPECT_EQ(why_not_reused(several, model, {}), std::nullopt);
  RunConfig adapted = one_mini_batch();
  adapted.model.lora_rank = 2;
  EXPECT_EQ(why_not_reused(adapted, model, {}), std::nullopt);
  EXPECT_NE(why_not_reused(adapted, model, {.lora_dropout = 0.1})->find("dropout"), std::string::npos);
  for (const DecodeDtype sampler : {DecodeDtype::kAuto, DecodeDtype::kBfloat16}) {
    RunConfig rounded = one_mini_batch();
    rounded.model.dtype = ModelDtype::kBfloat16;
    rounded.rollout.dtype = sampler;
    EXPECT_EQ(why_not_reused(rounded, model, {}), std::nullopt);
  }
  EXPECT_NE(why_not_reused(one_mini_batch(), model, {.by_operators = true})->find("GPU"), std::string::npos);
  EXPECT_NE(why_not_reused(one_mini_batch(), moe_config(), {})->find("experts"), std::string::npos);
  ModelConfig sandwich = model;
  sandwich.sandwich_norm = true;
  EXPECT_NE(why_not_reused(one_mini_batch(), sandwich, {})->find("norms"), std::string::npos);
}

TEST(ReuseRules, RanksDoItIfEachHasAllWeightsAndWholeRows) {
  const ModelConfig model = tiny_model(1).config();
  const auto why_not = [&](const std::function<void(RunConfig&)>& change) {
    RunConfig config = one_mini_batch();
    change(config);
    return why_not_reused(config, model, {.num_ranks = 4});
  };
  for (const int64_t stage : {0, 1, 2})
    EXPECT_EQ(why_not([&](RunConfig& c) { c.ranks.zero_stage = stage; }), std::nullopt) << stage;
  const std::vector<std::pair<std::string, std::function<void(RunConfig&)>>> cases = {
      {"filter_groups", [](RunConfig& c) { c.algorithm.filter_groups.enable = true; }},
      {"ranks.zero_stage is 3", [](RunConfig& c) { c.ranks.zero_stage = 3; }},
      {"actor.ulysses_sequence_parallel_size", [](RunConfig& c) { c.actor.ulysses_sequence_parallel_size = 2; }},
      {"actor.tensor_model_parallel_size", [](RunConfig& c) { c.actor.tensor_model_parallel_size = 2; }},
      {"rollout.tensor_model_parallel_size", [](RunConfig& c) { c.rollout.tensor_model_parallel_size = 2; }},
  };
  for (const auto& [reason, change] : cases) {
    const std::optional<std::string> said = why_not(change);
    ASSERT_TRUE(said) << reason;
    EXPECT_NE(said->find(reason), std::string::npos) << *said;
  }
}

// Two prompts of up to 5 tokens with three rows of up to 4, of which each decodes 3.
TEST(ReuseRules, TheLongestRowsMustFit) {
  RunConfig config = one_mini_batch();
  config.data.train_batch_size = config.actor.ppo_mini_batch_size = 2;
  config.data.max_prompt_length = 5;
  config.data.max_response_length = 4;
  config.rollout.n = 3;
  EXPECT_EQ(sampled_tokens(config), 2 * 5 + 6 * 3);
  EXPECT_EQ(sampled_group_tokens(config), 0);
  RunConfig filtered = config;
  filtered.algorithm.filter_groups.enable = true;
  EXPECT_EQ(sampled_group_tokens(filtered), 5 + 3 * 3);
  EXPECT_EQ(sampled_tokens(filtered), (2 + 2) * 14);
  filtered.data.gen_batch_size = 7;
  EXPECT_EQ(sampled_tokens(filtered), (2 + 7) * 14);
  EXPECT_EQ(why_not_reused(filtered, tiny_model(1).config(), {}), std::nullopt);
  const ModelConfig small = tiny_model(1).config();
  // One layer: q, k and v of 2 + 2 heads of 4, attention of 2 heads, 2 log-sum-exps, two residual streams of 8, gate and up
  // of 12 each; and an id of 8 bytes.
  EXPECT_EQ(SampledForward::bytes_per_token(small), 4 * (16 + 8 + 2 + 16 + 24) + 8);
  ModelConfig model = small;
  model.num_layers = 100;
  const double mib = sampled_bytes(config, model) / (1 << 20);
  config.rollout.reuse_forward_mib = static_cast<int64_t>(mib) + 1;
  EXPECT_EQ(why_not_reused(config, model, {}), std::nullopt);
  model.num_layers = 400;
  ASSERT_GT(sampled_bytes(config, model), static_cast<double>(config.rollout.reuse_forward_mib << 20));
  EXPECT_NE(why_not_reused(config, model, {})->find("it takes up to"), std::string::npos);
}

}  // namespace
}  // namespace mortise
