// The table of metric names and the page that is made from it.
#include "foundation/metrics/names.h"

#include <gmock/gmock.h>

#include <cstdlib>
#include <fstream>
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
  EXPECT_TRUE(metric_pattern_matches("rollout_corr/{name}_max", "rollout_corr/log_ppl_diff_max"));
  EXPECT_FALSE(metric_pattern_matches("rollout_corr/{name}_max", "rollout_corr/max_kl"));
  EXPECT_FALSE(metric_pattern_matches("rollout_corr/{name}_max", "rollout_corr/_max"));
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

// Names that dashboards of verl and TRL look for, with their reduction.
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
      {"perf/cpu_memory_used_gb", Reduction::kMax},
      {"training/global_step", Reduction::kLast},
      {"training/rollout_probs_diff_std", Reduction::kMean},
      {"training/rollout_actor_probs_pearson_corr", Reduction::kMean},
      {"val-core/gsm8k/acc/mean@8", Reduction::kMean},
      {"val-core/openai/gsm8k/reward/best@4/mean", Reduction::kMean},
      {"eval_rewards/math_equal/mean", Reduction::kMean},
      {"val-aux/num_turns/mean", Reduction::kMean},
      {"rollout_corr/rollout_is_max", Reduction::kMax},
      {"rollout_corr/rollout_is_seq_min", Reduction::kMin},
      {"rollout_corr/rollout_is_mean", Reduction::kMean},
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

// docs/metrics.md shows the table; MORTISE_WRITE_DOCS=1 writes it there.
TEST(MetricNames, ThePageShowsTheTable) {
  const std::string path = std::string(MORTISE_SOURCE_DIR) + "/docs/metrics.md";
  constexpr std::string_view kBegin = "<!-- the table -->\n", kEnd = "<!-- end of the table -->\n";
  std::string table = "| name | unit | combined by | meaning |\n|---|---|---|---|\n";
  for (const MetricInfo& info : metric_table()) {
    std::string meaning;
    for (const char c : info.meaning) meaning += c == '|' ? std::string("\\|") : std::string(1, c);
    table += "| `" + std::string(info.pattern) + "` | " + std::string(info.unit) + " | " +
             std::string(reduction_name(info.reduction)) + " | " + meaning + " |\n";
  }
  std::ifstream in(path);
  const std::string page{std::istreambuf_iterator<char>(in), {}};
  const size_t begin = page.find(kBegin), end = page.find(kEnd);
  ASSERT_TRUE(begin != std::string::npos && end != std::string::npos && begin < end) << path << " has lost its marks";
  const size_t from = begin + kBegin.size();
  if (std::getenv("MORTISE_WRITE_DOCS") != nullptr)
    std::ofstream(path) << page.substr(0, from) + table + page.substr(end);
  else
    EXPECT_EQ(page.substr(from, end - from), table) << "run test_foundation_metrics with MORTISE_WRITE_DOCS=1";
}

}  // namespace
}  // namespace mortise
