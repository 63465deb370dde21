// The replay buffer: which groups of earlier steps take the place of which, how old they may be, and what a checkpoint
// holds.
#include "experience/selection/replay_buffer.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>

#include "experience/selection/row_choice.h"
#include "scored_groups.h"

namespace mortise {
namespace {

ReplayBuffer buffer_of(int64_t size, int64_t max_age) { return ReplayBuffer({true, size, max_age}, 5); }

// A step with groups of these rewards, whose data rows are numbered from 100 times the step.
Experience step_of(int64_t step, const std::vector<std::pair<double, double>>& rewards) {
  Experience out = groups_of(rewards, 100 * step);
  out.prompts.step = step;
  out.prompts.epoch = step / 2;
  return out;
}

// The step's data rows after the exchange.
std::vector<int64_t> learnt(ReplayBuffer& buffer, const Experience& fresh, MetricSet& metrics) {
  const Experience out = buffer.exchange(fresh, fresh.prompts.step, metrics).value();
  EXPECT_EQ(out.prompts.step, fresh.prompts.step);
  EXPECT_EQ(out.prompts.epoch, fresh.prompts.epoch);
  EXPECT_EQ(out.samples.rows.size(), fresh.samples.rows.size());
  buffer.commit();
  return rows_in(out);
}

TEST(ReplayBuffer, GroupsOfEarlierStepsReplaceThoseWhoseRewardsDoNotDiffer) {
  ReplayBuffer buffer = buffer_of(8, 3);
  MetricSet first, second;
  // Nothing is there to replace them, and a step never draws its own groups.
  EXPECT_EQ(learnt(buffer, step_of(1, {{1, 1}, {0, 1}, {kNaN, 1}}), first), (std::vector<int64_t>{100, 101, 102}));
  EXPECT_EQ(first.value("training/replay_buffer/replaced"), 0.0);
  EXPECT_EQ(first.value("training/replay_buffer/size"), 1.0);
  EXPECT_FALSE(first.value("training/replay_buffer/age").has_value());

  const Experience fresh = step_of(3, {{0.5, 0.25}, {0, 0}, {1, 1}});
  const Experience out = buffer.exchange(fresh, 3, second).value();
  EXPECT_EQ(rows_in(out), (std::vector<int64_t>{300, 101, 302}));  // one group is there, and two would be needed
  EXPECT_EQ(out.scored.rewards, (std::vector<double>{0.5, 0.25, 0, 1, 1, 1}));
  EXPECT_EQ(out.prompts.prompts[0].sampled_in_step, 0);
  EXPECT_EQ(out.prompts.prompts[1].sampled_in_step, 1);
  EXPECT_EQ(out.samples.rows[2].prompt_index, 1);
  EXPECT_EQ(second.value("training/replay_buffer/replaced"), 1.0);
  EXPECT_EQ(second.value("training/replay_buffer/age"), 2.0);
  EXPECT_EQ(second.value("training/replay_buffer/size"), 2.0);
}

TEST(ReplayBuffer, AStepThatFailsLeavesItAsItWas) {
  ReplayBuffer buffer = buffer_of(8, 0);
  MetricSet metrics;
  (void)buffer.exchange(step_of(1, {{0, 1}}), 1, metrics);
  EXPECT_EQ(learnt(buffer, step_of(1, {{0, 0}}), metrics), (std::vector<int64_t>{100}));
}

TEST(ReplayBuffer, GroupsLeaveWhenTheyAreTooOld) {
  for (const auto& [max_age, last] : {std::pair<int64_t, int64_t>{2, 3}, {0, 9}}) {
    ReplayBuffer buffer = buffer_of(8, max_age);
    MetricSet metrics;
    learnt(buffer, step_of(1, {{0, 1}}), metrics);
    for (int64_t step = 2; step <= 9; ++step) {
      const int64_t expected = step <= last ? 100 : 100 * step;
      EXPECT_EQ(learnt(buffer, step_of(step, {{1, 1}}), metrics), (std::vector<int64_t>{expected})) << max_age << step;
    }
  }
}

TEST(ReplayBuffer, AFullOneKeepsTheLargestSpreadAndTheNewest) {
  ReplayBuffer buffer = buffer_of(2, 0);
  MetricSet metrics;
  learnt(buffer, step_of(1, {{0, 1}, {0, 4}, {0, 2}}), metrics);  // leaves out the first
  learnt(buffer, step_of(2, {{0, 2}, {5, 6}}), metrics);          // the newer 2 stays, the older goes
  const Experience out = buffer.exchange(step_of(3, {{0, 0}, {0, 0}, {0, 0}}), 3, metrics).value();
  std::vector<int64_t> rows = rows_in(out);
  std::sort(rows.begin(), rows.end());
  EXPECT_EQ(rows, (std::vector<int64_t>{101, 200, 302}));
}

TEST(ReplayBuffer, ACheckpointHoldsAllOfIt) {
  ReplayBuffer buffer = buffer_of(3, 4), other = buffer_of(3, 4);
  MetricSet metrics;
  learnt(buffer, step_of(1, {{0, 1}, {0, 3}}), metrics);
  learnt(buffer, step_of(2, {{2, 5}, {1, 1}}), metrics);
  StateSnapshot snapshot, again;
  StateWriter writer(buffer.state_name(), &snapshot), rewriter(other.state_name(), &again);
  ASSERT_TRUE(buffer.save_state(writer).ok());
  StateReader reader(other.state_name(), &snapshot, "test");
  ASSERT_TRUE(other.load_state(reader).ok());
  for (int64_t step = 3; step < 7; ++step) {
    const Experience fresh = step_of(step, {{0, 0}, {2, 2}, {0, 1}});
    EXPECT_EQ(encode_experience(buffer.exchange(fresh, step, metrics).value()),
              encode_experience(other.exchange(fresh, step, metrics).value()));
    buffer.commit();
    other.commit();
  }
}

// Settings that a resume was allowed to change.
TEST(ReplayBuffer, GroupsWithOtherRewardsAreLeftOut) {
  ReplayBuffer buffer = buffer_of(3, 0);
  MetricSet metrics;
  learnt(buffer, step_of(1, {{0, 1}}), metrics);
  Experience fresh = step_of(2, {{1, 1}});
  fresh.scored.columns[0].name = "another";
  EXPECT_EQ(learnt(buffer, fresh, metrics), (std::vector<int64_t>{200}));
}

TEST(RowChoice, GroupsAreDrawnByTheirWeightsAndNeverTwice) {
  const std::vector<double> weights{1, 6, 3};
  std::map<size_t, double> firsts;
  for (int64_t step = 1; step <= 4000; ++step) {
    std::vector<size_t> drawn = draw_groups(weights, 2, 7, step);
    ASSERT_EQ(drawn.size(), 2U);
    EXPECT_NE(drawn[0], drawn[1]);
    firsts[drawn[0]] += 1.0 / 4000;
  }
  EXPECT_NEAR(firsts[0], 0.1, 0.02);
  EXPECT_NEAR(firsts[1], 0.6, 0.03);
  EXPECT_NEAR(firsts[2], 0.3, 0.03);
  EXPECT_EQ(draw_groups(weights, 9, 7, 1).size(), 3U);
  EXPECT_EQ(draw_groups(weights, 2, 7, 1), draw_groups(weights, 2, 7, 1));
  EXPECT_TRUE(draw_groups({}, 2, 7, 1).empty());
}

TEST(RowChoice, TheSpreadIsTheDistanceFromTheMean) {
  EXPECT_DOUBLE_EQ(spread_of(std::vector<double>{0, 0, 1, 1, kNaN}), 2.0);
  EXPECT_DOUBLE_EQ(spread_of(std::vector<double>{3, 3}), 0.0);
  EXPECT_DOUBLE_EQ(spread_of(std::vector<double>{kNaN}), 0.0);
}

}  // namespace
}  // namespace mortise
