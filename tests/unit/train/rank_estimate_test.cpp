// What --dry-run says that ranks send.
#include "train/run/rank_estimate.h"

#include <gtest/gtest.h>

#include <string>

#include "config/full_kl.h"
#include "train/run/memory_parts.h"
#include "unit/learn/moe_config.h"
#include "unit/train/run_of_passes.h"

namespace mortise {
namespace {

// Each layer has a sum behind attention and one behind its MLP or experts. Experts that all tokens pass have a third.
TEST(RankEstimate, CountsTheSumsOfRanksThatSampleTogether) {
  RunConfig config;
  const BatchPlan plan = plan_batches(config);
  ModelConfig model = moe_config();
  const auto sent = [&](int64_t rollout_size, int num_ranks) {
    config.rollout.tensor_model_parallel_size = rollout_size;
    return estimate_ranks(config, model, plan, {}, {}, num_ranks).rollout_bytes;
  };
  EXPECT_EQ(sent(1, 4), 0.0);
  const double of_two = sent(2, 2);
  const auto tokens = static_cast<double>(plan.prompts_per_step * config.data.max_prompt_length +
                                          plan.rows_per_step * config.data.max_response_length);
  EXPECT_EQ(of_two, tokens * static_cast<double>(2 * model.num_layers * model.hidden_size) * 4.0);
  EXPECT_EQ(sent(2, 4), of_two / 2.0) << "each of two groups has half of the tokens";
  EXPECT_EQ(sent(4, 4), of_two * 3.0) << "a rank tells three others";
  model.moe.shared_size = 8;
  const auto layers = static_cast<double>(2 * model.num_layers),
             shared = static_cast<double>(model.num_expert_layers());
  EXPECT_DOUBLE_EQ(sent(2, 2), of_two * (layers + shared) / layers);
}

// Filtered log-probs gather the head in each pass of an update. Passes that compare distributions do not.
TEST(RankEstimate, CountsTheHeadsThatRanksGather) {
  RunConfig config;
  config.actor.tensor_model_parallel_size = 2;
  const BatchPlan plan = plan_batches(config);
  const ModelConfig model = moe_config();
  const TrainedSize all{.numbers = 100}, adapter{.numbers = 100, .of_vocabulary = 10};
  const auto bytes = [&](const RunConfig& run, const TrainedSize& trained) {
    return estimate_ranks(run, model, plan, {}, trained, 2).tensor_bytes;
  };
  EXPECT_EQ(gathered_heads(config, all).at_once, 0);
  const auto head = static_cast<double>(model.vocab_size * model.hidden_size * 4);
  const double passes = static_cast<double>(estimate_ranks(config, model, plan, {}, all, 2).most_passes);
  RunConfig full = config, filtered = config;
  full.actor.use_kl_loss = true;
  full.actor.kl_loss_type = kFullKl;
  filtered.rollout.filtered_log_probs = true;
  EXPECT_DOUBLE_EQ(bytes(filtered, all) - bytes(config, all), head * passes) << "half of it in forward and in backward";
  EXPECT_EQ(bytes(full, all), bytes(config, all));
  EXPECT_EQ(gathered_heads(filtered, all).at_once, 2);
  EXPECT_EQ(gathered_heads(full, all).at_once, 0);
  for (RunConfig* run : {&config, &filtered}) run->model.lora_rank = 2;
  EXPECT_EQ(gathered_heads(filtered, all).at_once, 1) << "no gradient of a frozen head";
  EXPECT_EQ(gathered_heads(filtered, adapter).at_once, 0) << "the head is whole on every rank";
  EXPECT_EQ(bytes(filtered, adapter), bytes(config, adapter));
  EXPECT_LT(bytes(config, adapter), bytes(config, all)) << "no terms of embedding and head are added";
}

// Rules that need whole parameters send a rank's part of the gradient and of the weights, and the new weights.
TEST(RankEstimate, CountsTheStepsOfWholeParameters) {
  const ModelConfig model = moe_config();
  const auto bytes = [&](OptimizerName optimizer, int64_t stage, int num_ranks) {
    RunConfig config;
    config.actor.tensor_model_parallel_size = 2;
    config.actor.optim.optimizer = optimizer;
    config.ranks.zero_stage = stage;
    const TrainedSize all{.numbers = static_cast<double>(model.num_parameters())};
    return estimate_ranks(config, model, plan_batches(config), {}, all, num_ranks).tensor_bytes;
  };
  const double own = static_cast<double>(model.num_parameters()) - numbers_of_others(model, 2).all();
  for (const OptimizerName name : {OptimizerName::kAdafactor, OptimizerName::kMuon, OptimizerName::kAdamW8Bit}) {
    EXPECT_NEAR(bytes(name, 0, 2) - bytes(OptimizerName::kLion, 0, 2), 3.0 * own * 4.0 / 2.0, 0.01);
    EXPECT_NEAR(bytes(name, 1, 4) - bytes(OptimizerName::kLion, 1, 4), 3.0 * own * 4.0 / 4.0, 0.01);
  }
}

// Each node of the tree goes to all other ranks, or with ZeRO to those that own its parts.
TEST(RankEstimate, CountsTheNodesOfDeterministicSums) {
  const ModelConfig model = moe_config();
  const TrainedSize trained{.numbers = 100};
  const auto bytes = [&](bool deterministic, int64_t num_passes, int num_ranks, int64_t stage) {
    RunConfig config = run_of_passes(num_passes, stage);
    config.trainer.deterministic = deterministic;
    return estimate_ranks(config, model, plan_batches(config), {}, trained, num_ranks).gradient_bytes;
  };
  EXPECT_DOUBLE_EQ(bytes(false, 8, 4, 0), 2.0 * 400.0 * 3.0 / 4.0);
  EXPECT_DOUBLE_EQ(bytes(true, 8, 4, 0), 400.0 * 3.0) << "each rank sends the node of its two micro-batches to all";
  EXPECT_DOUBLE_EQ(bytes(true, 8, 2, 0), bytes(false, 8, 2, 0));
  EXPECT_DOUBLE_EQ(bytes(true, 6, 2, 0), 2.0 * 400.0) << "three micro-batches are two nodes";
  EXPECT_DOUBLE_EQ(bytes(true, 8, 4, 1), bytes(false, 8, 4, 1));
  EXPECT_DOUBLE_EQ(bytes(true, 6, 2, 1), 2.0 * bytes(false, 6, 2, 1));
  EXPECT_DOUBLE_EQ(bytes(false, 8, 4, 2), 2.0 * bytes(false, 8, 4, 1)) << "after each micro-batch";
  EXPECT_DOUBLE_EQ(bytes(true, 8, 4, 2), bytes(false, 8, 4, 2)) << "owners add each micro-batch";
}

// Rows of a group have their prompt once in a micro-batch.
TEST(RankEstimate, CountsMicroBatchesOfGroups) {
  RunConfig config;
  config.rollout.n = 8;
  config.data.max_prompt_length = 64;
  config.data.max_response_length = 128;
  config.data.train_batch_size = config.actor.ppo_mini_batch_size = 4;
  const auto passes = [&](int64_t tokens) {
    config.actor.ppo_max_token_len_per_gpu = tokens;
    return estimate_ranks(config, moe_config(), plan_batches(config), {}, {}, 2).most_passes;
  };
  EXPECT_EQ(passes(64 + 8 * 128), 4) << "a group each";
  EXPECT_EQ(passes(2 * (64 + 8 * 128)), 2);
  EXPECT_EQ(passes(3 * (64 + 8 * 128)), 2);
  EXPECT_EQ(passes(64 + 4 * 128), 8) << "half of a group each";
  EXPECT_EQ(passes(64 + 6 * 128), 4 + 2) << "six rows of each group, and twice the other two of two groups";
  EXPECT_EQ(passes(64 + 128), 32);
  EXPECT_EQ(passes(100), 32) << "a row is longer than the budget";
}

TEST(RankEstimate, CountsWhatTheCriticSends) {
  const CriticSize critic{.model = moe_config(),
                          .trained = {.numbers = 100},
                          .units = {.all = 60, .layer = 25, .layers = 50, .ends = 10, .largest_end = 10}};
  const auto bytes = [&](const RunConfig& config, int num_ranks) {
    return critic_bytes_sent(config, plan_batches(config), critic, num_ranks);
  };
  RunConfig config = run_of_passes(8);
  const double values = 8.0 * static_cast<double>(config.data.max_response_length) * 4.0 / 2.0;
  EXPECT_DOUBLE_EQ(bytes(config, 1), 0.0);
  EXPECT_DOUBLE_EQ(bytes(config, 2), values + 400.0) << "its gradient to another rank, and back";
  config.critic.ppo_mini_batch_size = 4;
  config.critic.ppo_epochs = 3;
  EXPECT_DOUBLE_EQ(bytes(config, 2), values + 6.0 * 400.0) << "two updates in each of three passes over the rows";
  config.ranks.zero_stage = 2;
  EXPECT_DOUBLE_EQ(bytes(config, 2), values + 6.0 * (2.0 * 200.0 + 200.0)) << "two micro-batches, and new weights";
  config.ranks.zero_stage = 3;
  EXPECT_DOUBLE_EQ(bytes(config, 2), values + 6.0 * (2.0 * 200.0 + 2.0 * (60.0 + 50.0) / 2.0) + 4.0 * 60.0 / 2.0)
      << "no new weights, but those that others read forward and backward, and for values";
  const double whole = bytes(config, 4);
  config.critic.ulysses_sequence_parallel_size = 2;
  EXPECT_GT(bytes(config, 4), whole) << "heads of each other's tokens";
}

TEST(RankEstimate, NamesTheMeshAndTheCritic) {
  const RunConfig config = run_of_passes(8);
  const BatchPlan plan = plan_batches(config);
  RankEstimate ranks = estimate_ranks(config, moe_config(), plan, {}, {.numbers = 100}, 4);
  const std::string plain = ranks_text(ranks, plan);
  EXPECT_NE(plain.find("# mesh: dp 4\n"), std::string::npos) << plain;
  EXPECT_EQ(plain.find("critic"), std::string::npos) << plain;
  const double before = ranks.bytes_of_step(plan);
  ranks.critic_bytes = 5 << 20;
  EXPECT_DOUBLE_EQ(ranks.bytes_of_step(plan), before + ranks.critic_bytes);
  const std::string text = ranks_text(ranks, plan);
  EXPECT_NE(text.find(" in a step, of which 5.0 MiB for the critic\n"), std::string::npos) << text;
}

}  // namespace
}  // namespace mortise
