// Each rule: a made run that shows the fault and one that does not.
#include "report/diagnosis.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <set>

#include "foundation/base/env.h"

namespace mortise {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr int64_t kSteps = 100;

// From `first` to `last` in a straight line.
MetricSeries line(double first, double last, int64_t steps = kSteps) {
  MetricSeries out;
  for (int64_t i = 0; i < steps; ++i)
    out.push_back({i + 1, first + (last - first) * static_cast<double>(i) / static_cast<double>(steps - 1)});
  return out;
}

// A run that learns well: no rule applies.
RunHistory healthy() {
  RunHistory run;
  run.last_step = kSteps;
  run.metrics = {{"critic/score/mean", line(0.1, 0.7)},
                 {"critic/score/max", line(1.0, 1.0)},
                 {"critic/score/min", line(0.0, 0.0)},
                 {"reward_std", line(0.4, 0.4)},
                 {"frac_reward_zero_std", line(0.3, 0.2)},
                 {"frac_reward_nan", line(0.0, 0.0)},
                 {"response_length/mean", line(200, 250)},
                 {"response_length/clip_ratio", line(0.1, 0.05)},
                 {"entropy", line(1.0, 0.4)},
                 {"kl", line(0.0, 0.05)},
                 {"clip_ratio/region_mean", line(0.02, 0.03)},
                 {"training/rollout_probs_diff_mean", line(1e-4, 1e-4)},
                 {"training/rollout_actor_probs_pearson_corr", line(0.9999, 0.9999)},
                 {"actor/skipped_updates", line(0, 0)},
                 {"val-core/task/reward/mean@1", line(0.1, 0.65, 10)}};
  return run;
}

std::vector<std::string> rules_of(const RunHistory& run, const std::vector<ScoredText>& texts = {}) {
  std::vector<std::string> names;
  for (const Finding& finding : diagnose(run, texts)) {
    EXPECT_FALSE(finding.evidence.empty()) << finding.rule;
    EXPECT_FALSE(finding.advice.empty()) << finding.rule;
    names.push_back(finding.rule);
  }
  return names;
}

TEST(Diagnosis, AHealthyRunHasNoFinding) { EXPECT_THAT(rules_of(healthy()), IsEmpty()); }

TEST(Diagnosis, ARunWithoutMetricsHasNone) { EXPECT_THAT(rules_of(RunHistory{}), IsEmpty()); }

// One change each of the healthy run, and the rule that must notice it. The second value is just within the limit.
struct Fault {
  const char* rule;
  const char* metric;
  MetricSeries bad, good;
};

TEST(Diagnosis, EveryFaultIsNamedByItsRuleAlone) {
  const Fault faults[] = {
      {"zero_variance", "frac_reward_zero_std", line(0.3, 0.8), line(0.3, 0.5)},
      {"truncated", "response_length/clip_ratio", line(0.0, 0.5), line(0.0, 0.2)},
      {"entropy_collapse", "entropy", line(1.0, 0.02), line(1.0, 0.3)},
      {"kl_drift", "kl", line(0.0, 2.0), line(0.3, 0.6)},
      {"clipping", "clip_ratio/region_mean", line(0.1, 0.6), line(0.1, 0.3)},
      {"sampler_mismatch", "training/rollout_probs_diff_mean", line(0.001, 0.05), line(0.001, 0.009)},
      {"sampler_mismatch", "training/rollout_actor_probs_pearson_corr", line(0.999, 0.9), line(0.999, 0.995)},
      {"failed_rewards", "frac_reward_nan", line(0.0, 0.2), line(0.0, 0.04)},
      {"failed_rewards", "rewards/math/failed", line(0, 3), line(0, 0)},
      {"skipped_updates", "actor/skipped_updates", line(0, 1), line(0, 0)},
      {"overfitting",
       "val-core/task/reward/mean@1",
       {{10, 0.3}, {20, 0.6}, {30, 0.4}},
       {{10, 0.3}, {20, 0.6}, {30, 0.58}}},
  };
  for (const Fault& fault : faults) {
    RunHistory run = healthy();
    run.metrics[fault.metric] = fault.bad;
    EXPECT_THAT(rules_of(run), ElementsAre(fault.rule)) << fault.metric;
    run.metrics[fault.metric] = fault.good;
    EXPECT_THAT(rules_of(run), IsEmpty()) << fault.metric;
  }
}

TEST(Diagnosis, ARewardThatDoesNotApplyIsNoFailure) {
  RunHistory run = healthy();
  run.metrics["frac_reward_nan"] = line(0.2, 0.2);
  const auto advice = [&run] { return diagnose(run, {}).front().advice; };
  EXPECT_THAT(advice(), HasSubstr("Read the reasons")) << "the run does not say whether any failed";
  run.metrics["rewards/math/failed"] = line(0, 0);
  EXPECT_THAT(advice(), HasSubstr("none of them applies to these rows"));
  run.metrics["rewards/math/failed"] = line(3, 3);
  EXPECT_THAT(advice(), HasSubstr("Read the reasons"));
}

TEST(Diagnosis, LongerCompletionsAreAFaultOnlyWithoutAGain) {
  RunHistory run = healthy();
  run.metrics["response_length/mean"] = line(200, 900);
  EXPECT_THAT(rules_of(run), IsEmpty());
  run.metrics["critic/score/mean"] = line(0.4, 0.4);
  EXPECT_THAT(rules_of(run), ElementsAre("no_progress", "length_explosion"));
}

TEST(Diagnosis, ASaturatedRewardIsNoLackOfProgress) {
  RunHistory run = healthy();
  run.metrics["critic/score/mean"] = line(0.995, 0.995);
  EXPECT_THAT(rules_of(run), ElementsAre("reward_saturation"));
  run.metrics["critic/score/mean"] = line(0.2, 0.9);
  EXPECT_THAT(rules_of(run), IsEmpty());
}

TEST(Diagnosis, NoiseIsNoProgress) {
  RunHistory run = healthy();
  MetricSeries& score = run.metrics["critic/score/mean"];
  for (size_t i = 0; i < score.size(); ++i)
    score[i].value = 0.4 + (i % 2 == 0 ? 0.1 : -0.1) + 1e-5 * static_cast<double>(i);
  EXPECT_THAT(rules_of(run), ElementsAre("no_progress"));
  for (size_t i = 0; i < score.size(); ++i) score[i].value += 0.002 * static_cast<double>(i);
  EXPECT_THAT(rules_of(run), IsEmpty());
}

TEST(Diagnosis, AFallThatTrainingSharesIsNoOverfitting) {
  RunHistory run = healthy();
  run.metrics["val-core/task/reward/mean@1"] = {{10, 0.3}, {20, 0.6}, {30, 0.4}};
  run.metrics["critic/score/mean"] = line(0.075, 0.0762);
  EXPECT_THAT(rules_of(run), testing::Not(testing::Contains("overfitting")));
}

TEST(Diagnosis, GroupsOfOneAndRunsWithACriticNeedNoDifference) {
  RunHistory run = healthy();
  run.metrics["frac_reward_zero_std"] = line(1.0, 1.0);
  run.settings["rollout.n"] = "4";
  EXPECT_THAT(rules_of(run), ElementsAre("zero_variance"));
  run.metrics["critic/vf_loss"] = line(0.5, 0.1);
  EXPECT_THAT(rules_of(run), IsEmpty());
  run.metrics.erase("critic/vf_loss");
  run.settings["rollout.n"] = "1";
  EXPECT_THAT(rules_of(run), IsEmpty());
}

TEST(Diagnosis, AScoreThatFallsIsNamed) {
  RunHistory run = healthy();
  MetricSeries& score = run.metrics["critic/score/mean"];
  for (size_t i = 0; i < score.size(); ++i) score[i].value = i < 50 ? 0.4 : 0.15;
  run.metrics["critic/score/max"] = line(1.0, 1.0);
  const std::vector<Finding> found = diagnose(run, {});
  ASSERT_FALSE(found.empty());
  EXPECT_EQ(found[0].rule, "reward_collapse");
  EXPECT_EQ(found[0].evidence, "The mean score was 0.4 up to step 20 and is 0.15 at the end.");
  for (size_t i = 50; i < score.size(); ++i) score[i].value = 0.25;
  EXPECT_THAT(rules_of(run), testing::Not(testing::Contains("reward_collapse"))) << "it kept more than half";
  for (size_t i = 0; i < score.size(); ++i) score[i].value = i % 2 == 0 ? 0.9 : 0.0;
  for (size_t i = 80; i < score.size(); ++i) score[i].value = i % 4 == 0 ? 0.8 : 0.0;
  EXPECT_THAT(rules_of(run), testing::Not(testing::Contains("reward_collapse"))) << "chance explains it";
}

TEST(Diagnosis, AValidationThatFallsWithoutARiseInTrainingIsNoOverfitting) {
  RunHistory run = healthy();
  run.metrics["val-core/task/reward/mean@1"] = {{0, 0.34}, {4, 0.04}, {8, 0.05}, {12, 0.06}};
  EXPECT_THAT(rules_of(run), ElementsAre("overfitting"));
  // A run of 12 steps that was destroyed in its second step. Its noise moves the end above the beginning.
  run.metrics["critic/score/mean"].clear();
  for (const double value : {0.105, 0.04, 0.03, 0.035, 0.04, 0.07, 0.04, 0.03, 0.045, 0.04, 0.09, 0.08}) {
    MetricSeries& score = run.metrics["critic/score/mean"];
    score.push_back({static_cast<int64_t>(score.size()) + 1, value});
  }
  EXPECT_THAT(rules_of(run), ElementsAre("reward_collapse"));
}

// Ten prompts of which one or none is solved say nothing. Neither do two validations while training rises.
TEST(Diagnosis, AValidationThatFallsByChanceIsNoCollapse) {
  RunHistory run = healthy();
  run.metrics["critic/score/mean"] = line(0.3, 0.3);
  run.metrics["val-core/task/reward/mean@1"] = {{0, 0.1}, {50, 0.1}, {100, 0.0}};
  run.metrics["val-aux/task/reward/stderr@1"] = {{0, 0.1}, {50, 0.1}, {100, 0.0}};
  EXPECT_THAT(rules_of(run), testing::Not(testing::Contains("reward_collapse")));
  run.metrics["val-aux/task/reward/stderr@1"] = {{0, 0.01}, {50, 0.01}, {100, 0.01}};
  EXPECT_THAT(rules_of(run), testing::Contains("reward_collapse"));
  run.metrics["critic/score/mean"] = healthy().metrics["critic/score/mean"];
  run.metrics["val-core/task/reward/mean@1"] = {{0, 0.4}, {100, 0.1}};
  EXPECT_THAT(rules_of(run), testing::Not(testing::Contains("reward_collapse"))) << "the training score rose";
}

TEST(Diagnosis, ARunThatFailedSaysWhy) {
  RunHistory run = healthy();
  run.events = {{"", "error", "an older one"}, {"", "error", "the disk is full"}, {"", "warning", "a warning"}};
  for (const char* state : {"", "running", "done", "stopped"}) {
    run.state = state;
    EXPECT_THAT(rules_of(run), IsEmpty()) << state;
  }
  run.state = "failed";
  const std::vector<Finding> found = diagnose(run, {});
  ASSERT_EQ(found.size(), 1U);
  EXPECT_EQ(found[0].rule, "failed_run");
  EXPECT_EQ(found[0].evidence, "the disk is full");
}

TEST(Diagnosis, OneRewardOutweighsTheOthers) {
  RunHistory run = healthy();
  run.metrics["rewards/math/std"] = line(0.5, 0.5);
  run.metrics["rewards/format/std"] = line(0.5, 0.5);
  run.settings = {{"reward.0.use", "\"math\""},
                  {"reward.0.weight", "1.0"},
                  {"reward.1.use", "\"regex\""},
                  {"reward.1.name", "\"format\""},
                  {"reward.1.weight", "0.5"}};
  EXPECT_THAT(rules_of(run), IsEmpty());
  run.settings["reward.1.weight"] = "0.01";
  const std::vector<Finding> found = diagnose(run, {});
  ASSERT_EQ(found.size(), 1U);
  EXPECT_EQ(found[0].rule, "one_reward");
  EXPECT_THAT(found[0].evidence, HasSubstr("99% of the spread of all weighted rewards is that of 'math'"));
}

TEST(Diagnosis, RepeatedCompletionsWithinAPrompt) {
  std::vector<ScoredText> same, different;
  for (int64_t prompt = 0; prompt < 4; ++prompt) {
    for (int i = 0; i < 4; ++i) {
      same.push_back({prompt, i == 0 ? "another" : "one"});
      different.push_back({prompt, "text " + std::to_string(i)});
    }
  }
  EXPECT_THAT(rules_of(healthy(), same), ElementsAre("repeated_completions"));
  EXPECT_THAT(rules_of(healthy(), different), IsEmpty());
  // The same text for different prompts is no repetition.
  std::vector<ScoredText> single;
  for (int64_t prompt = 0; prompt < 20; ++prompt) single.push_back({prompt, "7"});
  EXPECT_THAT(rules_of(healthy(), single), IsEmpty());
}

TEST(Diagnosis, ValuesThatAreNotFiniteAreLeftOut) {
  RunHistory run = healthy();
  run.metrics["entropy"][3].value = std::nan("");
  EXPECT_THAT(rules_of(run), IsEmpty());
  for (MetricPoint& point : run.metrics["entropy"]) point.value = std::nan("");
  EXPECT_THAT(rules_of(run), IsEmpty());
}

TEST(Diagnosis, EveryRuleIsInTheDocs) {
  const std::string page = default_env().read_file(Path(MORTISE_SOURCE_DIR) / "docs/diagnosis.md").value();
  for (const std::string& rule : diagnosis_rules()) EXPECT_THAT(page, HasSubstr("\n### " + rule + "\n"));
}

}  // namespace
}  // namespace mortise
