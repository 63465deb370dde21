// Learning rates that follow validations, against torch's ReduceLROnPlateau and transformers' GreedyLR.
#include "learn/optim/metric_schedule.h"

#include <gmock/gmock.h>

#include <cmath>
#include <vector>

#include "support/temp_dir.h"

namespace mortise {
namespace {

using testing::HasSubstr;

void copy_state(const MetricSchedule& from, MetricSchedule& to) {
  StateSnapshot snapshot;
  StateWriter writer(from.state_name(), &snapshot);
  ASSERT_OK(from.save_state(writer));
  StateReader reader(to.state_name(), &snapshot, "here");
  ASSERT_OK(to.load_state(reader));
}

// What the validations after steps 1, 2, ... give.
const std::vector<double> kValues = {0.1, 0.2,  0.2,  0.19, 0.3,  0.3,  0.3, 0.3,  0.3, 0.3, 0.31, 0.31, 0.3, 0.2,
                                     0.1, 0.35, 0.36, 0.37, 0.38, 0.39, 0.4, 0.41, 0.2, 0.2, 0.2,  0.2,  0.2, 0.2,
                                     0.2, 0.2,  0.2,  0.2,  0.2,  0.2,  0.2, 0.2,  0.2, 0.2, 0.2,  0.2};

OptimConfig following(LrSchedule type, MetricMode mode) {
  OptimConfig config;
  config.lr = 3e-4;
  config.lr_scheduler_type = type;
  config.lr_metric.name = "eval_reward";
  config.lr_metric.mode = mode;
  return config;
}

MetricSet reward(double value) {
  MetricSet metrics;
  EXPECT_OK(metrics.add_user("eval_reward", value, 1.0, Reduction::kMean));
  return metrics;
}

double rate_of(const MetricSchedule& schedule) {
  return schedule.rate({.type = LrSchedule::kGreedy, .lr = 3e-4, .total_units = 50}, 7);
}

void expect_rates(const OptimConfig& config, const std::vector<double>& wanted) {
  MetricSchedule schedule(config, "actor.optim");
  ASSERT_EQ(wanted.size(), kValues.size());
  EXPECT_OK(schedule.judge(0, reward(100.0)));  // the policy before the first step does not count
  for (size_t i = 0; i < kValues.size(); ++i) {
    EXPECT_OK(schedule.judge(static_cast<int64_t>(i + 1), reward(kValues[i])));
    EXPECT_NEAR(rate_of(schedule), wanted[i], 1e-18) << "after validation " << i + 1;
  }
}

// A machine's failure is no lack of progress. Nor does it stay in the window of the mean.
TEST(MetricSchedule, DoesNotCountNan) {
  for (const LrSchedule type : {LrSchedule::kReduceOnPlateau, LrSchedule::kGreedy}) {
    OptimConfig config = following(type, MetricMode::kMax);
    config.lr_metric.smooth_window = 3;
    MetricSchedule with(config, "actor.optim"), without(config, "actor.optim");
    int64_t step = 0;
    for (const double value : kValues) {
      ++step;
      EXPECT_OK(with.judge(step, reward(std::nan(""))));
      EXPECT_OK(with.judge(step, reward(value)));
      EXPECT_OK(without.judge(step, reward(value)));
      EXPECT_EQ(rate_of(with), rate_of(without)) << "after validation " << step;
    }
  }
}

TEST(MetricSchedule, LooksForItsMetricWithoutCounting) {
  const MetricSchedule schedule(following(LrSchedule::kGreedy, MetricMode::kMax), "actor.optim");
  EXPECT_OK(schedule.check(reward(0.5)));
  EXPECT_FALSE(schedule.check(MetricSet()).ok());
}

// From torch 2.11.0: ReduceLROnPlateau with lr = 3e-4 on kValues, with the settings of each case.
TEST(MetricSchedule, ReducesOnAPlateauAsTorchDoes) {
  OptimConfig rising = following(LrSchedule::kReduceOnPlateau, MetricMode::kMax);
  rising.lr_metric.factor = 0.5;
  rising.lr_metric.patience = 2;
  rising.lr_metric.cooldown = 1;
  rising.lr_metric.min_lr = 2e-5;
  expect_rates(rising, {0.0003,  0.0003,  0.0003,  0.0003,  0.0003,   0.0003,   0.0003,   0.00015,  0.00015, 0.00015,
                        0.00015, 0.00015, 0.00015, 7.5e-05, 7.5e-05,  7.5e-05,  7.5e-05,  7.5e-05,  7.5e-05, 7.5e-05,
                        7.5e-05, 7.5e-05, 7.5e-05, 7.5e-05, 3.75e-05, 3.75e-05, 3.75e-05, 3.75e-05, 2e-05,   2e-05,
                        2e-05,   2e-05,   2e-05,   2e-05,   2e-05,    2e-05,    2e-05,    2e-05,    2e-05,   2e-05});
  OptimConfig falling = following(LrSchedule::kReduceOnPlateau, MetricMode::kMin);
  falling.lr_metric.patience = 3;
  falling.lr_metric.threshold = 0.05;
  falling.lr_metric.threshold_mode = ThresholdMode::kAbs;
  expect_rates(falling, {0.0003,
                         0.0003,
                         0.0003,
                         0.0003,
                         2.9999999999999997e-05,
                         2.9999999999999997e-05,
                         2.9999999999999997e-05,
                         2.9999999999999997e-05,
                         3e-06,
                         3e-06,
                         3e-06,
                         3e-06,
                         3.0000000000000004e-07,
                         3.0000000000000004e-07,
                         3.0000000000000004e-07,
                         3.0000000000000004e-07,
                         3.0000000000000004e-08,
                         3.0000000000000004e-08,
                         3.0000000000000004e-08,
                         3.0000000000000004e-08,
                         3.0000000000000004e-09,
                         3.0000000000000004e-09,
                         3.0000000000000004e-09,
                         3.0000000000000004e-09,
                         3.0000000000000004e-09,
                         3.0000000000000004e-09,
                         3.0000000000000004e-09,
                         3.0000000000000004e-09,
                         3.0000000000000004e-09,
                         3.0000000000000004e-09,
                         3.0000000000000004e-09,
                         3.0000000000000004e-09,
                         3.0000000000000004e-09,
                         3.0000000000000004e-09,
                         3.0000000000000004e-09,
                         3.0000000000000004e-09,
                         3.0000000000000004e-09,
                         3.0000000000000004e-09,
                         3.0000000000000004e-09,
                         3.0000000000000004e-09});
}

// From transformers 5.23.0: GreedyLR with lr = 3e-4 on kValues.
TEST(MetricSchedule, IsGreedyAsTransformersIs) {
  OptimConfig both = following(LrSchedule::kGreedy, MetricMode::kMax);
  both.lr_metric.factor = 0.5;
  both.lr_metric.patience = 2;
  both.lr_metric.cooldown = both.lr_metric.raise_cooldown = 1;
  both.lr_metric.min_lr = 1e-5;
  both.lr_metric.max_lr = 1e-3;
  expect_rates(both,
               {0.0003,  0.0003,  0.0003,  0.0003,   0.0003,   0.0003,   0.0003,   0.00015,   0.00015,   0.00015,
                0.00015, 0.00015, 0.00015, 7.5e-05,  7.5e-05,  7.5e-05,  7.5e-05,  0.00015,   0.00015,   0.00015,
                0.00015, 0.0003,  0.0003,  0.0003,   0.0003,   0.00015,  0.00015,  0.00015,   0.00015,   7.5e-05,
                7.5e-05, 7.5e-05, 7.5e-05, 3.75e-05, 3.75e-05, 3.75e-05, 3.75e-05, 1.875e-05, 1.875e-05, 1.875e-05});
  OptimConfig resets = following(LrSchedule::kGreedy, MetricMode::kMax);
  resets.lr_metric.factor = 0.1;
  resets.lr_metric.patience = 1;
  resets.lr_metric.min_lr = 2e-4;
  resets.lr_metric.max_lr = 1e-3;
  resets.lr_metric.reset_start = 2;
  resets.lr_metric.smooth_window = 3;
  resets.lr_metric.threshold = 0.01;
  resets.lr_metric.threshold_mode = ThresholdMode::kRel;
  expect_rates(resets, {0.0003, 0.001,  0.001,  0.001,  0.001,  0.001,  0.001,  0.001,  0.0002, 0.0002,
                        0.0002, 0.001,  0.001,  0.0002, 0.0002, 0.0003, 0.0003, 0.001,  0.001,  0.001,
                        0.001,  0.001,  0.001,  0.0002, 0.0002, 0.0003, 0.0003, 0.0003, 0.0002, 0.0002,
                        0.0003, 0.0003, 0.0003, 0.0002, 0.0002, 0.0003, 0.0003, 0.0003, 0.0002, 0.0002});
}

TEST(MetricSchedule, TheWarmUpAndOtherSchedulesStay) {
  MetricSchedule schedule(following(LrSchedule::kReduceOnPlateau, MetricMode::kMax), "actor.optim");
  EXPECT_EQ(schedule.rate({.type = LrSchedule::kReduceOnPlateau, .lr = 3e-4, .warmup_units = 4}, 2), 1.5e-4);
  OptimConfig other;
  MetricSchedule none(other, "actor.optim");
  EXPECT_OK(none.judge(1, MetricSet()));
  EXPECT_EQ(none.rate({.type = LrSchedule::kLinear, .lr = 2.0, .total_units = 4}, 1), 1.5);
}

TEST(MetricSchedule, AMetricThatIsMissingIsNamedAtOnce) {
  MetricSchedule schedule(following(LrSchedule::kGreedy, MetricMode::kMax), "actor.optim");
  MetricSet other;
  ASSERT_OK(other.add_user("eval_rewards", 1.0, 1.0, Reduction::kMean));
  const auto judged = schedule.judge(0, other);
  ASSERT_FALSE(judged.ok());
  EXPECT_THAT(judged.error().to_string(),
              HasSubstr("actor.optim.lr_metric.name: the validation has no metric 'eval_reward'; did you mean "));
}

TEST(MetricSchedule, ContinuesFromItsState) {
  OptimConfig config = following(LrSchedule::kGreedy, MetricMode::kMax);
  config.lr_metric.patience = 1;
  config.lr_metric.smooth_window = 4;
  config.lr_metric.cooldown = 2;
  for (size_t cut = 0; cut < kValues.size(); ++cut) {
    MetricSchedule whole(config, "actor.optim"), resumed(config, "actor.optim");
    for (size_t i = 0; i < kValues.size(); ++i) {
      EXPECT_OK(whole.judge(static_cast<int64_t>(i + 1), reward(kValues[i])));
      if (i == cut) copy_state(whole, resumed);
      if (i > cut) EXPECT_OK(resumed.judge(static_cast<int64_t>(i + 1), reward(kValues[i])));
      if (i >= cut) EXPECT_EQ(rate_of(resumed), rate_of(whole)) << cut << ", " << i;
    }
  }
  config.lr_metric.patience = 0;
  MetricSchedule moved(config, "actor.optim");
  for (int64_t step = 1; step < 9; ++step) EXPECT_OK(moved.judge(step, reward(0.0)));
  ASSERT_LT(rate_of(moved), 3e-4);
  config.lr = 1e-4;
  MetricSchedule other(config, "actor.optim");
  copy_state(moved, other);
  EXPECT_EQ(rate_of(other), 1e-4) << "with another lr it begins again";
}

}  // namespace
}  // namespace mortise
