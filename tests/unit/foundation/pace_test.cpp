// The pace of a run, by a clock that the test turns.
#include "foundation/metrics/pace.h"

#include <gtest/gtest.h>

namespace mortise {
namespace {

// A run with its own clock.
class FakeRun {
 public:
  void steps(int64_t count, double seconds_each) {
    for (int64_t i = 0; i < count; ++i) {
      now_s_ += seconds_each;
      pace_.add(++step_, static_cast<int64_t>(now_s_ * 1e9));
    }
  }
  double pace() const { return pace_.seconds_per_step().value(); }

 private:
  double now_s_ = 1000;
  int64_t step_ = 7;  // resumed
  Pace pace_{7, 1'000'000'000'000};
};

TEST(Pace, NothingBeforeTheFirstStep) {
  Pace pace(3, 5);
  EXPECT_EQ(pace.seconds_per_step(), std::nullopt);
  pace.add(3, 1'000'000'000);  // the validation before training has the number of the step before
  EXPECT_EQ(pace.seconds_per_step(), std::nullopt);
}

TEST(Pace, StepsBeforeAResumeTookNoTime) {
  FakeRun run;
  run.steps(1, 4.0);
  EXPECT_NEAR(run.pace(), 4.0, 1e-6);
  run.steps(3, 2.0);
  EXPECT_NEAR(run.pace(), 2.5, 1e-6);
}

// The average since the start would say 0.29 s and 0.96 s.
TEST(Pace, FollowsTheLastMinuteInBothDirections) {
  FakeRun slower;
  slower.steps(2400, 0.25);
  slower.steps(100, 1.25);
  EXPECT_NEAR(slower.pace(), 1.25, 0.01);
  FakeRun faster;
  faster.steps(600, 2.0);
  faster.steps(900, 0.25);
  EXPECT_NEAR(faster.pace(), 0.25, 0.01);
}

TEST(Pace, StepsLongerThanAMinuteCountSingly) {
  FakeRun run;
  run.steps(5, 600);
  run.steps(1, 90);
  EXPECT_NEAR(run.pace(), 90, 1e-6);
  run.steps(1, 61);
  EXPECT_NEAR(run.pace(), 61, 1e-6);
}

TEST(Pace, ShortStepsAreAveragedOverTheMinute) {
  FakeRun run;
  for (int i = 0; i < 100000; ++i) run.steps(1, i % 2 == 0 ? 0.001 : 0.003);
  EXPECT_NEAR(run.pace(), 0.002, 1e-5);
}

}  // namespace
}  // namespace mortise
