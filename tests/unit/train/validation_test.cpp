// Validation metrics: pass@k, best, majority, per data source.
#include "train/loop/validation.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <fstream>
#include <limits>

#include "foundation/formats/json.h"
#include "train/loop/val_statistics.h"

namespace mortise {
namespace {

using ::testing::HasSubstr;

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
  EXPECT_NEAR(*metrics.value("val-core/a/reward/pass@2"), 2.0 / 3.0, 1e-12);
  EXPECT_EQ(*metrics.value("val-core/a/reward/pass@3"), 1.0);
  EXPECT_EQ(*metrics.value("val-core/a/reward/vote@3"), 0.0);
  EXPECT_EQ(*metrics.value("val-core/b/reward/mean@3"), 1.0);  // the row without a reward is left out, not counted as 0
  EXPECT_EQ(*metrics.value("val-core/b/reward/maj@3/mean"), 1.0);
  EXPECT_EQ(*metrics.value("val-core/b/reward/pass@2"), 1.0);
  EXPECT_FALSE(metrics.value("val-core/b/reward/pass@3")) << "two completions have a reward";
  EXPECT_EQ(*metrics.value("val-aux/num_turns/mean"), 2.0);
}

// It is not in the metrics, and the log says so.
TEST(ValidationMetrics, ASourceThatNoMetricCanNameIsTold) {
  PromptBatch prompts;
  prompts.prompts.resize(2);
  prompts.prompts[0].data_source = std::string(300, 'a');
  prompts.prompts[1].data_source = "b";
  SampleBatch samples;
  ScoredBatch scored;
  for (int i = 0; i < 2; ++i) {
    samples.rows.emplace_back().prompt_index = i;
    scored.rewards.push_back(1.0);
    scored.row_valid.push_back(1);
  }
  MetricSet metrics;
  testing::internal::CaptureStderr();
  add_validation_metrics(prompts, samples, scored, metrics);
  const std::string log = testing::internal::GetCapturedStderr();
  EXPECT_THAT(log, HasSubstr("validation: metric name 'val-core/aaa"));
  EXPECT_THAT(log, HasSubstr("use at most 256 printable bytes"));
  EXPECT_EQ(log.find("warning"), log.rfind("warning")) << "one line, for all numbers of the source";
  EXPECT_EQ(*metrics.value("val-core/b/reward/mean@1"), 1.0);
}

// The means of the prompts of "a" are 1, 0 and 1/2: variance 1/4 (ddof 1), over 3 prompts. "b" has one prompt.
TEST(ValidationMetrics, StandardErrorOverThePromptsOfASource) {
  PromptBatch prompts;
  prompts.prompts.resize(4);
  for (int i = 0; i < 4; ++i) prompts.prompts[static_cast<size_t>(i)].data_source = i < 3 ? "a" : "b";
  SampleBatch samples;
  samples.num_samples_per_prompt = 2;
  ScoredBatch scored;
  const double rewards[] = {1, 1, 0, 0, 1, 0, 1, 0};
  for (int i = 0; i < 8; ++i) {
    samples.rows.emplace_back().prompt_index = i / 2;
    scored.rewards.push_back(rewards[i]);
    scored.row_valid.push_back(1);
  }
  MetricSet metrics;
  add_validation_metrics(prompts, samples, scored, metrics);
  EXPECT_NEAR(*metrics.value("val-core/a/reward/mean@2"), 0.5, 1e-12);
  EXPECT_NEAR(*metrics.value("val-aux/a/reward/stderr@2"), std::sqrt(0.25 / 3.0), 1e-12);
  EXPECT_FALSE(metrics.value("val-aux/b/reward/stderr@2")) << "one prompt has no standard error";
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
  EXPECT_EQ(*metrics.value("val-core/openai/gsm8k/acc/pass@2"), 1.0);
  EXPECT_NEAR(*metrics.value("val-core/openai/gsm8k/acc/best@2/mean"), 0.75, 0.05);
  EXPECT_NEAR(*metrics.value("val-aux/openai/gsm8k/acc/worst@2/mean"), 0.25, 0.05);
  EXPECT_EQ(*metrics.value("val-aux/openai/gsm8k/tries/mean@2"), 4.0);
  EXPECT_EQ(*metrics.value("val-aux/openai/gsm8k/match/mean@2"), 0.5);
  EXPECT_EQ(*metrics.value("val-aux/openai/gsm8k/format/mean@2"), 1.0);
  EXPECT_EQ(*metrics.value("val-aux/num_turns/max"), 4.0);  // three messages and the completion
}

// Rewards and answers of tests/golden/validation as a batch.
struct Scored {
  PromptBatch prompts;
  SampleBatch samples;
  ScoredBatch scored;
};

Scored scored_of(const Json& item) {
  Scored out;
  const auto n = item["n"].get<size_t>();
  out.samples.num_samples_per_prompt = static_cast<int64_t>(n);
  for (const Json& source : item["sources"]) out.prompts.prompts.emplace_back().data_source = source;
  out.scored.rewards = item["rewards"].get<std::vector<double>>();
  RewardColumn column{"right", 1.0, out.scored.rewards, {}};
  for (size_t i = 0; i < out.scored.rewards.size(); ++i) {
    Sample& sample = out.samples.rows.emplace_back();
    sample.prompt_index = static_cast<int64_t>(i / n);
    sample.text = std::to_string(i);
    out.scored.row_valid.push_back(1);
    column.extra["acc"].push_back(out.scored.rewards[i] > 0 ? 1.0 : 0.0);
    column.texts["pred"].push_back(item["pred"][i]);
  }
  out.scored.columns.push_back(std::move(column));
  return out;
}

TEST(ValidationMetrics, EqualVerls) {
  const Json cases = Json::parse(std::ifstream("golden/validation/cases.json"));
  ASSERT_GE(cases.size(), 7U);
  for (const Json& item : cases) {
    const Scored batch = scored_of(item);
    MetricSet metrics;
    add_validation_metrics(batch.prompts, batch.samples, batch.scored, metrics);
    size_t num_found = 0;
    for (const auto& [name, value] : item["metrics"].items()) {
      const auto core = metrics.value("val-core/" + name), aux = metrics.value("val-aux/" + name);
      ASSERT_TRUE(core || aux) << name;
      EXPECT_NEAR(core ? *core : *aux, value.get<double>(), 1e-12) << name << " of " << item["n"];
      const std::string at_n = "@" + std::to_string(item["n"].get<int>());
      const bool is_core = name.find("/std@") == std::string::npos && name.find("/worst@") == std::string::npos &&
                           (name.ends_with(at_n) || name.find(at_n + "/") != std::string::npos);
      EXPECT_EQ(core.has_value(), is_core) << name;
      ++num_found;
    }
    EXPECT_EQ(num_found, item["metrics"].size());
  }
}

// 1 - C(n - c, k) / C(n, k), where C(200, 100) would overflow 64 bits.
TEST(ValidationMetrics, PassAtKIsExactForAnyK) {
  std::vector<double> values(200, 0.0);
  for (size_t i = 0; i < 3; ++i) values[i * 60] = 1.0;
  for (const int64_t k : {1, 2, 7, 100, 197, 198, 200}) {
    double none = 1.0;  // chance that none of the three is among k
    for (int64_t i = 0; i < 3; ++i)
      none *= std::max(0.0, static_cast<double>(200 - k - i)) / static_cast<double>(200 - i);
    EXPECT_NEAR(expected_best_of(values, k), 1.0 - none, 1e-12) << k;
  }
  Json item = {{"n", 5}, {"sources", {"a"}}, {"rewards", {0, 1, 0, 1, 0}}, {"pred", {"x", "y", "x", "x", "y"}}};
  const Scored batch = scored_of(item);
  MetricSet metrics;
  add_validation_metrics(batch.prompts, batch.samples, batch.scored, metrics, "", {3});
  EXPECT_NEAR(*metrics.value("val-core/a/reward/pass@3"), 0.9, 1e-12);
  EXPECT_FALSE(metrics.value("val-core/a/reward/pass@2"));
  EXPECT_EQ(*metrics.value("val-core/a/reward/vote@5"), 0.0) << "three of five answered x, the first of them wrongly";
}

TEST(ValidationMetrics, ASetHasItsNameInFront) {
  Json item = {{"n", 1}, {"sources", {"unknown", "a", "set"}}, {"rewards", {0.0, 1.0, 0.5}}, {"pred", {"", "", ""}}};
  const Scored batch = scored_of(item);
  MetricSet metrics;
  add_validation_metrics(batch.prompts, batch.samples, batch.scored, metrics, "set");
  EXPECT_EQ(*metrics.value("val-core/set/reward/mean@1"), 0.25);
  EXPECT_EQ(*metrics.value("val-core/set/a/reward/mean@1"), 1.0);
}

}  // namespace
}  // namespace mortise
