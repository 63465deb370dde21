// What --dry-run says that ranks send.
#include "train/run/rank_estimate.h"

#include <gtest/gtest.h>

#include "config/full_kl.h"
#include "train/run/memory_estimate.h"
#include "unit/learn/moe_config.h"

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

// Losses and the program itself stay on the host.
TEST(MemoryEstimates, ADeviceHasEveryModel) {
  MemoryEstimate memory;
  double MemoryEstimate::*const on_device[] = {&MemoryEstimate::weights, &MemoryEstimate::reference,
                                               &MemoryEstimate::critic, &MemoryEstimate::teacher,
                                               &MemoryEstimate::reward_models};
  double bytes = 1.0;
  for (double MemoryEstimate::*const part : on_device) memory.*part = bytes *= 2.0;
  memory.program = 1000.0;
  EXPECT_EQ(memory.on_device(), 2.0 + 4.0 + 8.0 + 16.0 + 32.0);
}

}  // namespace
}  // namespace mortise
