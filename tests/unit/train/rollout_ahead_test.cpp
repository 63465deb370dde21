// RolloutAhead makes the experience of the next step while its caller works. A checkpoint saves that experience. If making
// it fails, the objects that it changed get their old state back.
#include "train/loop/rollout_ahead.h"

#include <gmock/gmock.h>

#include <future>
#include <stdexcept>

#include "support/temp_dir.h"

namespace mortise {
namespace {

struct Place : Stateful {
  int64_t at = 0;
  [[nodiscard]] std::string state_name() const override { return "place"; }
  Result<> save_state(StateWriter& writer) const override { return writer.put_int("at", at), Result<>(); }
  Result<> load_state(StateReader& reader) override {
    at = TRY(reader.get_int("at"));
    return {};
  }
};

Experience one_row(const std::string& text) {
  Experience made;
  made.samples.num_samples_per_prompt = 1;
  made.samples.rows.push_back({0, 0, {5, 6}, {-0.5F, -1.5F}, FinishReason::kStop, 4, text});
  made.scored.rewards = {1.0};
  made.scored.row_valid = {1};
  made.prompts.step = 3;
  made.prompts.prompts.push_back({{1, 2}, "1+", "", "unknown", Json::object(), 3, {4, 5}, {0, 1}});
  return made;
}

class RolloutAheadTest : public testing::Test {
 protected:
  void SetUp() override { ASSERT_OK(ahead_.add_changing(place_)); }
  Place place_;
  RolloutAhead ahead_;
  MetricSet metrics_;
};

TEST_F(RolloutAheadTest, ItIsMadeWhileItsCallerWorks) {
  std::promise<void> caller_has_worked;
  ASSERT_OK(ahead_.begin(3, [&](MetricSet& metrics) -> Result<Experience> {
    caller_has_worked.get_future().wait();
    metrics.add("timing_s/gen", 2.0);
    ++place_.at;
    return one_row("made");
  }));
  caller_has_worked.set_value();  // would never be reached if begin() made it
  ahead_.wait();
  EXPECT_FALSE(ahead_.has(2));
  ASSERT_TRUE(ahead_.has(3));
  ASSERT_OK_AND_ASSIGN(const Experience made, ahead_.take(metrics_));
  EXPECT_EQ(made.samples.rows.at(0).text, "made");
  EXPECT_EQ(metrics_.value("timing_s/gen"), 2.0);
  EXPECT_EQ(place_.at, 1);
  EXPECT_FALSE(ahead_.has(3));
}

TEST_F(RolloutAheadTest, WhatFailsIsUndoneAndTold) {
  place_.at = 7;
  ASSERT_OK(ahead_.begin(3, [&](MetricSet&) -> Result<Experience> {
    place_.at = 8;
    return Error{ErrorKind::kReward, "no reward", "reward.0", ""};
  }));
  ahead_.wait();
  EXPECT_EQ(place_.at, 7);
  StateSnapshot snapshot;
  StateWriter writer("trainer.rollout_ahead", &snapshot);
  ASSERT_OK(ahead_.save_state(writer));
  EXPECT_EQ(std::get<int64_t>(snapshot.scalars["trainer.rollout_ahead"]["step"]), 0)
      << "a failed rollout must not be saved";
  ASSERT_TRUE(ahead_.has(3));
  const auto failed = ahead_.take(metrics_);
  ASSERT_FALSE(failed.ok());
  EXPECT_EQ(failed.error().what, "no reward");
}

TEST_F(RolloutAheadTest, AnExceptionIsAnError) {
  ASSERT_OK(ahead_.begin(1, [](MetricSet&) -> Result<Experience> { throw std::runtime_error("no memory"); }));
  ahead_.wait();
  const auto failed = ahead_.take(metrics_);
  ASSERT_FALSE(failed.ok());
  EXPECT_EQ(failed.error().kind, ErrorKind::kInternal);
  EXPECT_THAT(failed.error().what, testing::HasSubstr("no memory"));
}

TEST_F(RolloutAheadTest, ACheckpointHoldsIt) {
  ASSERT_OK(ahead_.begin(3, [](MetricSet& metrics) -> Result<Experience> {
    metrics.add_mean("response_length/mean", 2.0, 1.0);
    return one_row("kept");
  }));
  ahead_.wait();
  StateSnapshot snapshot;
  StateWriter writer("trainer.rollout_ahead", &snapshot);
  ASSERT_OK(ahead_.save_state(writer));
  RolloutAhead other;
  StateReader reader("trainer.rollout_ahead", &snapshot, "checkpoint");
  ASSERT_OK(other.load_state(reader));
  EXPECT_THAT(reader.unread_keys(), testing::IsEmpty());
  ASSERT_TRUE(other.has(3));
  ASSERT_OK_AND_ASSIGN(const Experience made, other.take(metrics_));
  EXPECT_EQ(encode_experience(made), encode_experience(one_row("kept")));
  EXPECT_EQ(metrics_.value("response_length/mean"), 2.0);
}

}  // namespace
}  // namespace mortise
