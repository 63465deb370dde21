// Validation metrics: pass@k, best, majority, per data source.
#include "train/loop/validation.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

namespace mortise {
namespace {

// Mean of the maximum over all subsets of size k, by enumeration.
double best_by_enumeration(const std::vector<double>& values, int k) {
  double sum = 0.0;
  int count = 0;
  for (unsigned mask = 0; mask < (1U << values.size()); ++mask) {
    if (__builtin_popcount(mask) != k) continue;
    double best = -1e300;
    for (size_t i = 0; i < values.size(); ++i) {
      if ((mask >> i & 1U) != 0) best = std::max(best, values[i]);
    }
    sum += best;
    ++count;
  }
  return sum / count;
}

TEST(ExpectedBestOf, EqualsEnumeration) {
  const std::vector<double> values{0.3, 1.0, -2.0, 0.3, 5.0, 0.0};
  for (int k = 1; k <= 6; ++k) EXPECT_NEAR(expected_best_of(values, k), best_by_enumeration(values, k), 1e-12) << k;
}

TEST(ExpectedBestOf, IsPassAtKForZeroOneRewards) {  // 1 - C(n-c, k) / C(n, k), n = 5, c = 2, k = 3: 1 - 1/10
  EXPECT_NEAR(expected_best_of({0, 1, 0, 1, 0}, 3), 0.9, 1e-12);
}

TEST(ValidationMetrics, PerSourceMeanBestAndMajority) {
  PromptBatch prompts;
  prompts.prompts.resize(2);
  prompts.prompts[0].data_source = "a";
  prompts.prompts[1].data_source = "b";
  SampleBatch samples;
  samples.num_samples_per_prompt = 3;
  ScoredBatch scored;
  const char* texts[] = {"x", "y", "y", "z", "z", "w"};
  const double rewards[] = {1, 0, 0, 1, 1, std::numeric_limits<double>::quiet_NaN()};
  for (int i = 0; i < 6; ++i) {
    Sample& sample = samples.rows.emplace_back();
    sample.prompt_index = i / 3;
    sample.text = texts[i];
    scored.rewards.push_back(rewards[i]);
    scored.row_valid.push_back(std::isnan(rewards[i]) ? 0 : 1);
  }
  MetricSet metrics;
  add_validation_metrics(prompts, samples, scored, metrics);
  EXPECT_NEAR(*metrics.value("val-core/a/reward/mean@3"), 1.0 / 3.0, 1e-12);
  EXPECT_NEAR(*metrics.value("val-core/a/reward/best@2/mean"), 2.0 / 3.0, 1e-12);
  EXPECT_EQ(*metrics.value("val-core/a/reward/maj@3/mean"), 0.0);
  EXPECT_EQ(*metrics.value("val-core/b/reward/mean@3"), 1.0);  // the row without a reward is left out, not counted as 0
  EXPECT_EQ(*metrics.value("val-core/b/reward/maj@3/mean"), 1.0);
  EXPECT_NEAR(*metrics.value("val-aux/a/reward/worst@2/mean"), 0.0, 1e-12);
  EXPECT_EQ(*metrics.value("val-aux/num_turns/mean"), 2.0);
}

// The named numbers of a reward, and each of several rewards. Names of sources may have slashes.
TEST(ValidationMetrics, OtherNumbersOfTheRewards) {
  PromptBatch prompts;
  prompts.prompts.resize(1);
  prompts.prompts[0].data_source = "openai/gsm8k";
  prompts.prompts[0].messages =
      R"([{"role":"system","content":"s"},{"role":"user","content":"1+1"},{"role":"assistant","content":"2"},)"
      R"({"role":"user","content":"2+2"}])";
  SampleBatch samples;
  samples.num_samples_per_prompt = 2;
  samples.rows.resize(2);
  ScoredBatch scored;
  scored.rewards = {0.5, 1.5};
  scored.row_valid = {1, 1};
  scored.columns.push_back({"match", 1.0, {0, 1}, {{"acc", {0, 1}}, {"tries", {3, 5}}, {"bad\nname", {1, 1}}}});
  scored.columns.push_back({"format", 0.5, {1, 1}, {}});
  MetricSet metrics;
  add_validation_metrics(prompts, samples, scored, metrics);
  EXPECT_EQ(*metrics.value("val-core/openai/gsm8k/reward/mean@2"), 1.0);
  EXPECT_EQ(*metrics.value("val-core/openai/gsm8k/acc/mean@2"), 0.5);
  EXPECT_EQ(*metrics.value("val-core/openai/gsm8k/acc/best@2/mean"), 1.0);
  EXPECT_EQ(*metrics.value("val-aux/openai/gsm8k/acc/worst@2/mean"), 0.0);
  EXPECT_EQ(*metrics.value("val-aux/openai/gsm8k/tries/mean@2"), 4.0);
  EXPECT_EQ(*metrics.value("val-aux/openai/gsm8k/match/mean@2"), 0.5);
  EXPECT_EQ(*metrics.value("val-aux/openai/gsm8k/format/mean@2"), 1.0);
  EXPECT_EQ(*metrics.value("val-aux/num_turns/max"), 4.0);  // three messages and the completion
}

}  // namespace
}  // namespace mortise
