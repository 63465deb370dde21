// Learning-rate schedules against transformers' formulas.
#include "learn/optim/schedule.h"

#include <gtest/gtest.h>

namespace mortise {
namespace {

TEST(Schedule, WarmupStartsAtZeroAndConstantStays) {
  const ScheduleOptions options{LrSchedule::kConstant, 2.0, 4, 10, 0.0, 0.5};
  EXPECT_EQ(learning_rate(options, 0), 0.0);
  EXPECT_EQ(learning_rate(options, 1), 0.5);
  EXPECT_EQ(learning_rate(options, 3), 1.5);
  EXPECT_EQ(learning_rate(options, 4), 2.0);
  EXPECT_EQ(learning_rate(options, 99), 2.0);
}

TEST(Schedule, LinearFollowsTransformers) {  // lr * (max - s) / (max - warmup)
  const ScheduleOptions options{LrSchedule::kLinear, 1e-3, 2, 12, 0.0, 0.5};
  for (int64_t s = 2; s < 12; ++s)
    EXPECT_NEAR(learning_rate(options, s), 1e-3 * static_cast<double>(12 - s) / 10.0, 1e-18);
  EXPECT_EQ(learning_rate(options, 12), 0.0);
  EXPECT_EQ(learning_rate(options, 40), 0.0);  // past the end it does not go below
}

TEST(Schedule, CosineKeepsItsFloor) {
  const ScheduleOptions options{LrSchedule::kCosine, 1.0, 0, 100, 0.1, 0.5};
  EXPECT_DOUBLE_EQ(learning_rate(options, 0), 1.0);
  EXPECT_NEAR(learning_rate(options, 50), 0.55, 1e-12);
  EXPECT_NEAR(learning_rate(options, 100), 0.1, 1e-12);
}

TEST(Schedule, LinearKeepsItsFloorAndTheWarmUpKnowsNone) {
  const ScheduleOptions options{LrSchedule::kLinear, 2.0, 4, 14, 0.25, 0.5};
  EXPECT_EQ(learning_rate(options, 0), 0.0);  // the floor is that of the decay
  EXPECT_EQ(learning_rate(options, 2), 1.0);
  EXPECT_EQ(learning_rate(options, 4), 2.0);
  EXPECT_NEAR(learning_rate(options, 9), 2.0 * (0.25 + 0.75 * 0.5), 1e-15);
  EXPECT_NEAR(learning_rate(options, 14), 0.5, 1e-15);
  EXPECT_NEAR(learning_rate(options, 100), 0.5, 1e-15);
}

TEST(Schedule, CosineWithAFloorStaysAboveItForAnyNumberOfCycles) {
  ScheduleOptions options{LrSchedule::kCosine, 1.0, 10, 110, 0.2, 1.5};
  for (int64_t s = 10; s <= 150; ++s) EXPECT_GE(learning_rate(options, s), 0.2) << s;
  EXPECT_NEAR(learning_rate(options, 10 + 100 / 3), 0.2, 1e-3);  // down once after a third
  options.warmup_units = options.total_units = 10;               // nothing is left for the decay
  EXPECT_EQ(learning_rate(options, 10), 1.0);
}

TEST(Schedule, WarmupStepsGoBeforeTheRatio) {
  EXPECT_EQ(resolve_warmup(-1, 0.1, 200), 20);
  EXPECT_EQ(resolve_warmup(0, 0.1, 200), 0);
  EXPECT_EQ(resolve_warmup(7, 0.1, 200), 7);
}

}  // namespace
}  // namespace mortise
