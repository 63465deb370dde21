// What --dry-run says that ranks send.
#include "train/run/rank_estimate.h"

#include <gtest/gtest.h>

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
    return estimate_ranks(config, model, plan, {}, 1.0, num_ranks).rollout_bytes;
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

}  // namespace
}  // namespace mortise
