// The limits that end a run early.
#include "train/loop/stop_limits.h"

#include <gmock/gmock.h>

#include <cmath>

#include "support/temp_dir.h"

namespace mortise {
namespace {

using test::error_of;
using ::testing::HasSubstr;

MetricSet numbers(double diff, double kl, double nan, double flat) {
  MetricSet metrics;
  metrics.add_mean("training/rollout_probs_diff_mean", diff, 1);
  metrics.add_mean("kl", kl, 1);
  metrics.add_mean("frac_reward_nan", nan, 1);
  metrics.add_mean("frac_reward_zero_std", flat, 1);
  return metrics;
}

TEST(StopLimits, WithoutLimitsNothingStopsARun) {
  StopLimits limits{TrainerConfig()};
  EXPECT_OK(limits.check(1, numbers(1, 1e9, 1, std::nan(""))));
  EXPECT_OK(limits.check(2, MetricSet()));
}

TEST(StopLimits, EachHasItsKindAndNamesNumberAndLimit) {
  TrainerConfig config;
  config.rollout_probs_diff_limit = 1e-3;
  config.kl_limit = 0.5;
  config.nan_reward_limit = 0.25;
  config.zero_variance_limit = 0.75;
  StopLimits limits(config);
  EXPECT_OK(limits.check(1, numbers(1e-3, 0.5, 0.25, 0.75)));  // at the limit is not beyond it
  const auto broken = [&](const MetricSet& metrics, ErrorKind kind, const std::string& text) {
    const Result<> result = limits.check(7, metrics);
    ASSERT_FALSE(result.ok()) << text;
    EXPECT_EQ(result.error().kind, kind) << text;
    EXPECT_THAT(error_of(result), HasSubstr("step 7: " + text));
  };
  broken(numbers(0.002, 0, 0, 0), ErrorKind::kNumerics,
         "training/rollout_probs_diff_mean is 0.002, more than trainer.rollout_probs_diff_limit = 0.001");
  broken(numbers(0, 0.6, 0, 0), ErrorKind::kNumerics, "kl is 0.6, more than trainer.kl_limit = 0.5");
  broken(numbers(0, std::nan(""), 0, 0), ErrorKind::kNumerics, "kl is nan");
  broken(numbers(0, 0, 0.5, 0), ErrorKind::kReward, "frac_reward_nan is 0.5, more than trainer.nan_reward_limit");
  broken(numbers(0, 0, 0, 1), ErrorKind::kReward, "frac_reward_zero_std is 1, more than trainer.zero_variance_limit");
  MetricSet in_reward = numbers(0, 0, 0, 0), none;
  EXPECT_OK(limits.check(8, in_reward));
  EXPECT_THAT(error_of(limits.check(9, none)), HasSubstr("the step has no training/rollout_probs_diff_mean"));
  EXPECT_OK(limits.check(10, none, /*learnt=*/false));  // a warm-up of the critic, say
}

TEST(StopLimits, TheKlOfTheRewardCountsWhereTheLossHasNone) {
  TrainerConfig config;
  config.kl_limit = 0.5;
  StopLimits limits(config);
  MetricSet metrics;
  metrics.add_mean("actor/reward_kl_penalty", 0.6, 1);
  EXPECT_THAT(error_of(limits.check(1, metrics)), HasSubstr("actor/reward_kl_penalty is 0.6"));
}

TEST(StopLimits, PatienceCountsStepsInARowAndSurvivesAResume) {
  TrainerConfig config;
  config.kl_limit = 0.5;
  config.limit_patience = 3;
  StopLimits before(config), after(config);
  const MetricSet good = numbers(0, 0, 0, 0), bad = numbers(0, 1, 0, 0);
  EXPECT_OK(before.check(1, bad));
  EXPECT_OK(before.check(2, bad));
  EXPECT_OK(before.check(3, good));
  EXPECT_OK(before.check(4, bad));
  EXPECT_OK(before.check(5, bad));
  StatefulRegistry saved, loaded;
  ASSERT_OK(saved.add(before));
  ASSERT_OK(loaded.add(after));
  const StateSnapshot snapshot = saved.save().value();
  ASSERT_OK(loaded.load(snapshot, "here"));
  EXPECT_THAT(error_of(after.check(6, bad)), HasSubstr("trainer.kl_limit = 0.5, for 3 steps in a row"));
}

}  // namespace
}  // namespace mortise
