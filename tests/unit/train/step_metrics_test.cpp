#include "train/step_metrics.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

namespace mortise {
namespace {

constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();

SampleBatch two_groups() {
  SampleBatch samples;
  samples.num_samples_per_prompt = 2;
  for (int i = 0; i < 4; ++i) {
    Sample& sample = samples.rows.emplace_back();
    sample.prompt_index = i / 2;
    sample.token_ids.assign(static_cast<size_t>(i + 1), 7);
    sample.finish_reason = i == 3 ? FinishReason::kLength : FinishReason::kStop;
  }
  return samples;
}

TEST(StepMetrics, Rewards) {
  ScoredBatch scored;
  scored.rewards = {1.0, 1.0, 0.0, kNaN};
  scored.row_valid = {1, 1, 1, 0};
  scored.columns.push_back({"match", 1.0, scored.rewards, {}, 1, "row 3: crash"});
  MetricSet metrics;
  add_reward_metrics(two_groups(), scored, metrics);
  EXPECT_NEAR(*metrics.value("reward"), 2.0 / 3.0, 1e-12);
  EXPECT_NEAR(*metrics.value("reward_std"), std::sqrt(1.0 / 3.0), 1e-12);  // Bessel
  EXPECT_EQ(*metrics.value("frac_reward_zero_std"), 1.0);                  // one valid row is a flat group too
  EXPECT_EQ(*metrics.value("frac_reward_nan"), 0.25);
  EXPECT_EQ(*metrics.value("rewards/match/failed"), 1.0);
  EXPECT_EQ(*metrics.value("rewards/match/not_applicable"), 0.0);
  EXPECT_EQ(*metrics.value("critic/score/max"), 1.0);
}

TEST(StepMetrics, Lengths) {
  PromptBatch prompts;
  prompts.prompts.resize(2);
  prompts.prompts[0].token_ids = {1, 2, 3};
  prompts.prompts[1].token_ids = {1};
  SampleBatch samples = two_groups();
  MetricSet metrics;
  add_length_metrics(prompts, samples, 3, metrics);
  EXPECT_EQ(*metrics.value("response_length/mean"), 2.5);
  EXPECT_EQ(*metrics.value("completions/mean_terminated_length"), 2.0);
  EXPECT_EQ(*metrics.value("completions/clipped_ratio"), 0.25);
  EXPECT_EQ(*metrics.value("prompt_length/clip_ratio"), 0.5);
  EXPECT_EQ(count_tokens(prompts, samples), 10 + 8);
  EXPECT_EQ(*metrics.value("response_length_non_aborted/mean"), 2.5);
  samples.rows[0].token_ids.clear();
  samples.rows[0].finish_reason = FinishReason::kAbort;
  MetricSet aborted;
  add_length_metrics(prompts, samples, 3, aborted);
  EXPECT_EQ(*aborted.value("response_length/mean"), 9.0 / 4.0);
  EXPECT_EQ(*aborted.value("response_length_non_aborted/mean"), 3.0);
  EXPECT_EQ(*aborted.value("response_length_non_aborted/min"), 2.0);
  EXPECT_NEAR(*aborted.value("response_length_non_aborted/clip_ratio"), 1.0 / 3.0, 1e-12);
  EXPECT_EQ(*aborted.value("response/aborted_ratio"), 0.25);
}

TEST(StepMetrics, RolloutProbabilities) {
  const std::vector<float> rollout{std::log(0.5F), std::log(0.25F), 0.0F},
      train{std::log(0.4F), std::log(0.25F), -9.0F};
  const std::vector<uint8_t> mask{1, 1, 0};
  MetricSet metrics;
  add_rollout_probs_metrics(rollout, train, mask, metrics);
  EXPECT_NEAR(*metrics.value("training/rollout_probs_diff_max"), 0.1, 1e-6);
  EXPECT_NEAR(*metrics.value("training/rollout_probs_diff_mean"), 0.05, 1e-6);
  EXPECT_NEAR(*metrics.value("training/rollout_actor_probs_pearson_corr"), 1.0, 1e-6);
}

TEST(StepMetrics, UpdateRowHasTheContractsNames) {
  UpdateReport update;
  update.sums.num_tokens = 4;
  update.sums.kl = 2.0;
  update.sums.entropy = 8.0;
  update.metrics.add("clip_ratio/low_mean", 1.0, 4.0);
  const auto row = update_row(update, true);
  const auto value = [&](std::string_view name) {
    for (const MetricValue& v : row) {
      if (v.name == name) return v.value;
    }
    return kNaN;
  };
  EXPECT_EQ(value("kl"), 0.5);
  EXPECT_EQ(value("entropy"), 2.0);
  EXPECT_EQ(value("clip_ratio_low"), 0.25);
}

}  // namespace
}  // namespace mortise
