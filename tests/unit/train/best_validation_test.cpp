// Which validation is the best, and when a run ends early.
#include "train/loop/best_validation.h"

#include <gmock/gmock.h>

#include <cmath>

#include "support/temp_dir.h"

namespace mortise {
namespace {

TrainerConfig judged(int64_t patience = 0, double threshold = 0.0, bool greater = true) {
  TrainerConfig config;
  config.metric_for_best_model = "eval_reward";
  config.early_stopping_patience = patience;
  config.early_stopping_threshold = threshold;
  config.greater_is_better = greater;
  return config;
}

MetricSet reward(double value) {
  MetricSet metrics;
  EXPECT_OK(metrics.add_user("eval_reward", value, 1.0, Reduction::kMean));
  return metrics;
}

// The steps whose validation was the best so far.
std::vector<int64_t> best_steps(BestValidation& best, const std::vector<double>& values) {
  std::vector<int64_t> out;
  for (size_t i = 0; i < values.size(); ++i) {
    const auto step = static_cast<int64_t>(i + 1);
    EXPECT_OK(best.judge(step, reward(values[i])));
    if (best.is_best(step)) out.push_back(step);
  }
  return out;
}

TEST(BestValidation, WithoutAMetricNothingIsJudged) {
  TrainerConfig config;
  config.early_stopping_patience = 1;
  BestValidation best(config);
  EXPECT_OK(best.judge(1, MetricSet()));
  EXPECT_OK(best.judge(2, MetricSet()));
  EXPECT_FALSE(best.is_best(1));
  EXPECT_FALSE(best.is_over());
}

TEST(BestValidation, AnEqualValueOrNaNIsNoBetter) {
  BestValidation rising(judged());
  EXPECT_EQ(best_steps(rising, {0.5, 0.5, std::nan(""), 0.75, 0.25}), (std::vector<int64_t>{1, 4}));
  BestValidation falling(judged(0, 0.0, false));
  EXPECT_EQ(best_steps(falling, {0.5, 0.75, 0.25, std::nan("")}), (std::vector<int64_t>{1, 3}));
  BestValidation begins_with_nan(judged());
  EXPECT_EQ(best_steps(begins_with_nan, {std::nan(""), 0.1}), (std::vector<int64_t>{2}));
}

TEST(BestValidation, TheUntrainedPolicyIsNeverTheBest) {
  BestValidation best(judged());
  EXPECT_OK(best.judge(0, reward(1.0)));
  EXPECT_FALSE(best.is_best(0));
  EXPECT_OK(best.judge(1, reward(0.5)));
  EXPECT_TRUE(best.is_best(1));
  EXPECT_FALSE(best.judge(0, MetricSet()).ok()) << "a wrong name is told before the first step";
}

TEST(BestValidation, PatienceCountsValidationsInARow) {
  BestValidation best(judged(2));
  best_steps(best, {0.5, 0.4});
  EXPECT_FALSE(best.is_over());
  EXPECT_OK(best.judge(3, reward(0.6)));
  EXPECT_OK(best.judge(4, reward(0.6)));
  EXPECT_FALSE(best.is_over());
  EXPECT_OK(best.judge(5, reward(0.1)));
  EXPECT_TRUE(best.is_over());
}

// transformers' rule: a small gain makes the checkpoint the best, and still counts against the patience.
TEST(BestValidation, AGainUpToTheThresholdDoesNotResetThePatience) {
  BestValidation best(judged(2, 0.25));
  EXPECT_EQ(best_steps(best, {0.5, 0.625, 0.75}), (std::vector<int64_t>{1, 2, 3}));
  EXPECT_TRUE(best.is_over());
  BestValidation patient(judged(2, 0.25));
  best_steps(patient, {0.5, 0.625, 0.9375});  // 0.3125 above the best so far
  EXPECT_FALSE(patient.is_over());
}

TEST(BestValidation, ACheckpointBringsItBackForTheSameMetricOnly) {
  BestValidation before(judged(2));
  best_steps(before, {0.5, 0.25});
  StateSnapshot snapshot;
  StateWriter writer(before.state_name(), &snapshot);
  ASSERT_OK(before.save_state(writer));
  const auto load = [&](BestValidation& into) {
    StateReader reader(into.state_name(), &snapshot, "here");
    return into.load_state(reader);
  };
  BestValidation after(judged(2));
  ASSERT_OK(load(after));
  EXPECT_TRUE(after.is_best(1));
  EXPECT_EQ(after.text(), "eval_reward was 0.5 after step 1, the best so far");
  EXPECT_OK(after.judge(3, reward(0.5)));
  EXPECT_TRUE(after.is_over());
  TrainerConfig changed = judged(2);
  changed.metric_for_best_model = "val-core/task/reward/mean@1";
  BestValidation other(changed);
  ASSERT_OK(load(other));
  EXPECT_EQ(other.step(), 0);
}

}  // namespace
}  // namespace mortise
