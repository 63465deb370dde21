// The metrics of a step under the contract's names.
#include "train/report/step_metrics.h"
#include "train/report/source_metrics.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "support/thread_ranks.h"

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
  // One of the two that failed was in a group that was dropped.
  scored.columns.push_back({"match", 1.0, scored.rewards, {}, 2, {}, {"", "", "", "crash"}});
  MetricSet metrics;
  add_reward_metrics(two_groups(), scored, metrics);
  EXPECT_NEAR(*metrics.value("reward"), 2.0 / 3.0, 1e-12);
  EXPECT_NEAR(*metrics.value("reward_std"), std::sqrt(1.0 / 3.0), 1e-12);  // Bessel
  EXPECT_EQ(*metrics.value("frac_reward_zero_std"), 1.0);                  // one valid row is a flat group too
  EXPECT_EQ(*metrics.value("frac_reward_nan"), 0.25);
  EXPECT_EQ(*metrics.value("rewards/match/failed"), 2.0);
  EXPECT_EQ(*metrics.value("rewards/match/not_applicable"), 0.0);
  EXPECT_EQ(*metrics.value("critic/score/max"), 1.0);
}

TEST(StepMetrics, ScoresBySource) {
  PromptBatch prompts;
  prompts.prompts.resize(2);
  prompts.prompts[0].data_source = prompts.prompts[1].data_source = "math";
  SampleBatch samples = two_groups();
  ScoredBatch scored;
  scored.rewards = {1.0, 0.0, 0.25, kNaN};
  MetricSet alone;
  add_source_metrics(prompts, samples, scored, alone);
  EXPECT_TRUE(alone.values().empty()) << "critic/score/mean says it";
  prompts.prompts[1].data_source = "code";
  MetricSet metrics;
  add_source_metrics(prompts, samples, scored, metrics);
  EXPECT_EQ(*metrics.value("train-core/math/reward/mean"), 0.5);
  EXPECT_EQ(*metrics.value("train-core/code/reward/mean"), 0.25) << "the row without a reward is left out";
  PromptBatch many = prompts;
  many.prompts.resize(65);
  SampleBatch of_each = samples;
  of_each.rows.assign(65, samples.rows[0]);
  ScoredBatch ones;
  ones.rewards.assign(65, 1.0);
  for (size_t i = 0; i < 65; ++i) {
    many.prompts[i].data_source = "row " + std::to_string(i);
    of_each.rows[i].prompt_index = static_cast<int64_t>(i);
  }
  MetricSet none;
  add_source_metrics(many, of_each, ones, none);
  EXPECT_TRUE(none.values().empty()) << "names of rows are no sources";
  samples.rows[0].token_ids.clear();
  MetricSet shorter;
  add_source_metrics(prompts, samples, scored, shorter);
  EXPECT_EQ(*shorter.value("train-core/math/reward/mean"), 0.0) << "so is an empty completion";
}

// Rows of 4, 5, 4 and 5 tokens with their prompts.
TEST(StepMetrics, TokensOfRanks) {
  PromptBatch prompts;
  prompts.prompts.resize(2);
  prompts.prompts[0].token_ids = {1, 2, 3};
  prompts.prompts[1].token_ids = {1};
  const SampleBatch samples = two_groups();
  const StepTable table = make_step_table(prompts, samples);
  test::MeetingPoint nowhere(3);
  test::ThreadRank rank(nowhere, 0, 3);
  LearnerOptions options;
  options.micro_batch = {1, 0};
  options.ranks.communicator = &rank;
  MetricSet metrics;
  add_rank_metrics(table, options, /*shares_gradients=*/false, metrics);
  EXPECT_EQ(*metrics.value("global_seqlen/mean"), 6.0);
  EXPECT_EQ(*metrics.value("global_seqlen/min"), 4.0);
  EXPECT_EQ(*metrics.value("global_seqlen/max"), 9.0);
  EXPECT_EQ(*metrics.value("global_seqlen/minmax_diff"), 5.0);
  EXPECT_EQ(*metrics.value("global_seqlen/balanced_min"), 5.0);
  EXPECT_EQ(*metrics.value("global_seqlen/balanced_max"), 8.0);
  // With deterministic sums, ranks have ranges of micro-batches, or have them in turn.
  options.ranks.deterministic = true;
  MetricSet ranges, turns;
  add_rank_metrics(table, options, /*shares_gradients=*/false, ranges);
  EXPECT_EQ(*ranges.value("global_seqlen/balanced_max"), 9.0);
  add_rank_metrics(table, options, /*shares_gradients=*/true, turns);
  EXPECT_EQ(*turns.value("global_seqlen/balanced_min"), 4.0);
  EXPECT_EQ(*turns.value("global_seqlen/balanced_max"), 9.0);
  MetricSet of_one;
  add_rank_metrics(table, {}, false, of_one);
  for (const char* name : {"mean", "min", "max", "balanced_min", "balanced_max"})
    EXPECT_EQ(*of_one.value(std::string("global_seqlen/") + name), 18.0) << name;
  EXPECT_EQ(*of_one.value("global_seqlen/minmax_diff"), 0.0);
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
  EXPECT_EQ(*aborted.value("num_turns/mean"), 2.0);
}

TEST(StepMetrics, TurnsOfAConversation) {
  PromptBatch prompts;
  prompts.prompts.resize(2);
  prompts.prompts[1].messages = R"([{"role":"system","content":"s"},{"role":"user","content":"a"},)"
                                R"({"role":"assistant","content":"b"},{"role":"user","content":"c"}])";
  EXPECT_EQ(turns_of(prompts, two_groups()), (std::vector<double>{2.0, 2.0, 4.0, 4.0}));
}

TEST(StepMetrics, AgeOfTheSamples) {
  SampleBatch samples = two_groups();
  for (size_t i = 0; i < 4; ++i) samples.rows[i].weight_version = i < 2 ? 5 : 8;
  MetricSet metrics;
  add_staleness_metrics(samples, 8, metrics);
  EXPECT_EQ(*metrics.value("training/off_policy/trajectory_staleness"), 1.5);
  EXPECT_EQ(*metrics.value("training/off_policy/trajectory_staleness_worst"), 3.0);
}

// As verl, an empty response has no score; nor has a row to which no reward applies.
TEST(StepMetrics, ScoresAreOfResponsesThatThereAre) {
  SampleBatch samples = two_groups();
  samples.rows[1].token_ids.clear();
  ScoredBatch scored;
  scored.rewards = {1.0, -7.0, 3.0, kNaN};
  scored.row_valid = {1, 1, 1, 0};
  const std::vector<int64_t> ids(4);
  const auto row = [&](size_t n) { return TableRow{ids, std::span(ids).first(n), 0}; };
  StepTable table({row(1), row(0), row(3), row(4)});
  table.put<column::ResponseMask>(std::vector<uint8_t>(8, 1));
  table.put<column::TokenLevelRewards>({0.5F, 0.0F, 0.0F, 2.5F, 0.0F, 0.0F, 0.0F, 0.0F});
  table.make<column::Advantages>();
  table.make<column::Returns>();
  MetricSet metrics;
  add_reward_metrics(samples, scored, metrics);
  add_advantage_metrics(scored, table, metrics);
  EXPECT_EQ(*metrics.value("critic/score/mean"), 2.0);
  EXPECT_EQ(*metrics.value("critic/score/min"), 1.0);
  EXPECT_EQ(*metrics.value("critic/rewards/mean"), 1.5);
  EXPECT_EQ(*metrics.value("critic/rewards/min"), 0.5);
}

// Two rows by hand: W = sum of 1 - 2 p + s, its square-weighted form, and the three proxies.
TEST(StepMetrics, VarianceProxies) {
  const std::vector<int64_t> ids(2);
  StepTable table({{ids, ids, 0}, {ids, std::span(ids).first(1), 0}});
  table.put<column::ResponseMask>({1, 1, 1});
  table.put<column::Advantages>({2.0F, 4.0F, -1.0F});
  table.put<column::OldLogProb>({std::log(0.5F), std::log(0.25F), std::log(0.5F)});
  table.put<column::SumPiSquared>({0.5F, 0.25F, 0.75F});
  const double first = 0.5 + 0.75, second = 0.75;
  MetricSet plain, weighted;
  add_variance_proxies(table, plain);
  const auto value = [](const MetricSet& metrics, const char* name) {
    return metrics.value(std::string("variance_proxy/") + name).value_or(kNaN);
  };
  EXPECT_NEAR(value(plain, "proxy2_total_power"), (9 * first + second) / 2, 1e-6);
  EXPECT_NEAR(value(plain, "expected_a_squared"), 5.0, 1e-6);
  EXPECT_NEAR(value(plain, "expected_w"), (first + second) / 2, 1e-6);
  table.put<column::RolloutIsWeights>({1.0F, 3.0F, 2.0F});
  add_variance_proxies(table, weighted);
  EXPECT_NEAR(value(weighted, "proxy2_total_power"), (4 * 9 * first + 4 * second) / 2, 1e-6);
  EXPECT_NEAR(value(weighted, "expected_w"), (0.5 + 9 * 0.75 + 4 * 0.75) / 2, 1e-6);
  EXPECT_TRUE(std::isnan(value(plain, "proxy1_signal_strength")));  // known once there was an update
  plain.add("actor/grad_norm", 1.5);
  finish_variance_proxies(2, plain);
  EXPECT_NEAR(value(plain, "proxy1_signal_strength"), 2.25, 1e-12);
  EXPECT_NEAR(value(plain, "proxy3_pure_noise"), (9 * first + second) / 2 - 2.25, 1e-6);
  MetricSet none;
  table.drop<column::SumPiSquared>();
  add_variance_proxies(table, none);
  EXPECT_TRUE(none.empty());
}

TEST(StepMetrics, RolloutProbabilities) {
  const std::vector<float> rollout{std::log(0.5F), std::log(0.25F), 0.0F},
      train{std::log(0.4F), std::log(0.25F), -9.0F};
  const std::vector<int64_t> ids(3);
  StepTable table({{ids, ids, 0}});
  table.put<column::SampleMask>({1, 1, 0});
  table.put<column::RolloutLogProb>(rollout);
  table.put<column::FirstLogProb>(train);
  MetricSet metrics;
  add_rollout_probs_metrics(table, metrics);
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
  EXPECT_TRUE(update.metrics.add_user("clip/phi_mean", 3.0, 4.0, Reduction::kMean).ok());
  EXPECT_TRUE(update.metrics.add_user("reach", 6.0, 4.0, Reduction::kMean).ok());
  PluginInfo loss;
  loss.update_metrics = {"phi=clip/phi_mean", "reach", "absent"};
  const auto row = update_row(update, true, loss);
  const auto value = [&](std::string_view name) {
    for (const MetricValue& v : row) {
      if (v.name == name) return v.value;
    }
    return kNaN;
  };
  EXPECT_EQ(value("kl"), 0.5);
  EXPECT_EQ(value("entropy"), 2.0);
  EXPECT_EQ(value("clip_ratio_low"), 0.25);
  EXPECT_EQ(value("phi"), 0.75);
  EXPECT_EQ(value("reach"), 1.5);
  EXPECT_TRUE(std::isnan(value("absent")));
}

TEST(StepMetrics, TheMemoryIsThatOfTheRankThatHasMost) {
  test::on_ranks(3, [](Communicator& ranks) {
    StepTally tally;
    tally.num_tokens = 300;
    tally.seconds = 2.0;
    tally.memory_gib = ranks.rank() == 1 ? 7.5 : 1.25;
    MetricSet metrics;
    ASSERT_TRUE(add_run_metrics(RunCounters(), tally, ranks, metrics).ok());
    EXPECT_EQ(metrics.value("perf/cpu_memory_used_gb"), 7.5);
    EXPECT_EQ(metrics.value("perf/throughput"), 50.0) << "tokens per second and rank";
    EXPECT_GT(StepTally().memory_gib, 0.0) << "this process has memory";
  });
}

}  // namespace
}  // namespace mortise
