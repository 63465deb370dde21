#include "foundation/metrics/names.h"

#include <gmock/gmock.h>

#include <set>

namespace mortise {
namespace {

TEST(MetricNames, PatternsMatchWholeParts) {
  EXPECT_TRUE(metric_pattern_matches("a/b", "a/b"));
  EXPECT_FALSE(metric_pattern_matches("a/b", "a/bc"));
  EXPECT_FALSE(metric_pattern_matches("a/b", "a"));
  EXPECT_TRUE(metric_pattern_matches("rewards/{name}/mean", "rewards/exact match/mean"));
  EXPECT_FALSE(metric_pattern_matches("rewards/{name}/mean", "rewards/a/b/mean"));
  EXPECT_FALSE(metric_pattern_matches("rewards/{name}/mean", "rewards//mean"));
  EXPECT_FALSE(metric_pattern_matches("rewards/{name}/mean", "rewards/a/std"));
  EXPECT_TRUE(metric_pattern_matches("val-aux/{any}", "val-aux/a/b/c"));
  EXPECT_FALSE(metric_pattern_matches("val-aux/{any}", "val-aux/"));
}

TEST(MetricNames, TheTableIsSound) {
  std::set<std::string_view> seen;
  for (const MetricInfo& info : metric_table()) {
    EXPECT_TRUE(seen.insert(info.pattern).second) << info.pattern << " stands twice";
    EXPECT_FALSE(info.meaning.empty()) << info.pattern;
    EXPECT_FALSE(info.pattern.empty());
  }
}

// Names that dashboards of verl and TRL look for, with the way their parts are put together.
TEST(MetricNames, KnowsThePeersNames) {
  const std::vector<std::pair<const char*, Reduction>> names{
      {"actor/pg_loss", Reduction::kMean},
      {"actor/pg_clipfrac", Reduction::kMean},
      {"actor/ppo_kl", Reduction::kMean},
      {"actor/grad_norm", Reduction::kMean},
      {"actor/lr", Reduction::kLast},
      {"actor/entropy", Reduction::kMean},
      {"actor/kl_loss", Reduction::kMean},
      {"actor/kl_coef", Reduction::kLast},
      {"critic/score/mean", Reduction::kMean},
      {"critic/score/max", Reduction::kMax},
      {"critic/rewards/min", Reduction::kMin},
      {"critic/advantages/mean", Reduction::kMean},
      {"critic/returns/max", Reduction::kMax},
      {"response_length/clip_ratio", Reduction::kMean},
      {"prompt_length/max", Reduction::kMax},
      {"timing_s/gen", Reduction::kSum},
      {"timing_s/update_actor", Reduction::kSum},
      {"timing_per_token_ms/adv", Reduction::kMean},
      {"perf/throughput", Reduction::kMean},
      {"perf/total_num_tokens", Reduction::kSum},
      {"perf/max_memory_allocated_gb", Reduction::kMax},
      {"training/global_step", Reduction::kLast},
      {"training/rollout_probs_diff_std", Reduction::kMean},
      {"training/rollout_actor_probs_pearson_corr", Reduction::kMean},
      {"val-core/gsm8k/acc/mean@8", Reduction::kMean},
      {"val-core/openai/reward/best@4/mean", Reduction::kMean},
      {"val-aux/num_turns/mean", Reduction::kMean},
      {"loss", Reduction::kMean},
      {"grad_norm", Reduction::kMean},
      {"learning_rate", Reduction::kLast},
      {"entropy", Reduction::kMean},
      {"kl", Reduction::kMean},
      {"clip_ratio/low_min", Reduction::kMin},
      {"clip_ratio/high_max", Reduction::kMax},
      {"clip_ratio/region_mean", Reduction::kMean},
      {"completions/mean_terminated_length", Reduction::kMean},
      {"completions/max_length", Reduction::kMax},
      {"reward", Reduction::kMean},
      {"reward_std", Reduction::kMean},
      {"frac_reward_zero_std", Reduction::kMean},
      {"rewards/math_equal/std", Reduction::kMean},
      {"num_tokens", Reduction::kLast},
      {"step_time", Reduction::kSum},
  };
  for (const auto& [name, reduction] : names) {
    const MetricInfo* info = find_metric(name);
    ASSERT_NE(info, nullptr) << name;
    EXPECT_EQ(info->reduction, reduction) << name;
  }
  EXPECT_EQ(find_metric("actor/pg_los"), nullptr);
  EXPECT_EQ(find_metric("timing_per_token_ms/gen")->meaning, "sampling, per response token");  // exact before pattern
}

}  // namespace
}  // namespace mortise
