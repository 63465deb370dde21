// RolloutAhead makes the rollouts of the next steps while its caller works. A checkpoint saves them. If a round fails, the
// objects that it changed and the rollouts of earlier rounds get their old state back.
#include "train/sampling/rollout_ahead.h"

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
  made.prompts.prompts.push_back({{1, 2}, "1+", "", "unknown", Json::object(), 3, 2, {4, 5}, {0, 1}});
  return made;
}

// A rollout whose row is finished, or one whose row gets more tokens.
AheadRollout rollout_of(int64_t step, const std::string& text, bool is_whole = true) {
  AheadRollout made;
  made.step = step;
  made.first_round = step - 2;
  made.num_pieces = 1;
  made.is_whole = is_whole;
  if (!is_whole) made.is_done = {0};
  made.experience = one_row(text);
  made.experience.samples.rows[0].spans = {{4, 1}, {5, 1}};
  made.metrics.add("timing_s/gen", 2.0);
  return made;
}

class RolloutAheadTest : public testing::Test {
 protected:
  void SetUp() override { ASSERT_OK(ahead_.add_changing(place_)); }
  // A round that makes these.
  static RolloutAhead::Round adds(std::vector<AheadRollout> made) {
    return [made](RolloutAhead::Rollouts& rollouts) -> Result<> {
      rollouts.insert(rollouts.end(), made.begin(), made.end());
      return {};
    };
  }
  Place place_;
  RolloutAhead ahead_;
  MetricSet metrics_;
};

TEST_F(RolloutAheadTest, ItIsMadeWhileItsCallerWorks) {
  std::promise<void> caller_has_worked;
  ASSERT_OK(ahead_.begin([&](RolloutAhead::Rollouts& rollouts) -> Result<> {
    caller_has_worked.get_future().wait();
    ++place_.at;
    rollouts.push_back(rollout_of(3, "made"));
    return {};
  }));
  caller_has_worked.set_value();  // would never be reached if begin() made it
  ahead_.wait();
  EXPECT_FALSE(ahead_.has(2).value());
  ASSERT_TRUE(ahead_.has(3).value());
  ASSERT_OK_AND_ASSIGN(const Experience made, ahead_.take(3, metrics_));
  EXPECT_EQ(made.samples.rows.at(0).text, "made");
  EXPECT_EQ(metrics_.value("timing_s/gen"), 2.0);
  EXPECT_EQ(place_.at, 1);
  EXPECT_FALSE(ahead_.has(3).value());
}

TEST_F(RolloutAheadTest, OneThatIsNotWholeIsNotThere) {
  ASSERT_OK(ahead_.make_now(adds({rollout_of(3, "whole"), rollout_of(4, "begun", false)})));
  EXPECT_TRUE(ahead_.has(3).value());
  EXPECT_FALSE(ahead_.has(4).value());
  ASSERT_OK(ahead_.make_now([](RolloutAhead::Rollouts& rollouts) -> Result<> {
    rollouts.at(1).is_whole = true;
    return {};
  }));
  EXPECT_TRUE(ahead_.has(4).value()) << "a round continues what the round before began";
}

TEST_F(RolloutAheadTest, WhatFailsIsUndoneAndTold) {
  ASSERT_OK(ahead_.make_now(adds({rollout_of(3, "begun", false)})));
  place_.at = 7;
  ASSERT_OK(ahead_.begin([&](RolloutAhead::Rollouts& rollouts) -> Result<> {
    place_.at = 8;
    rollouts.at(0).experience.samples.rows.at(0).text = "more";
    rollouts.push_back(rollout_of(4, "lost"));
    return Error{ErrorKind::kReward, "no reward", "reward.0", ""};
  }));
  ahead_.wait();
  EXPECT_EQ(place_.at, 7);
  ASSERT_EQ(ahead_.rollouts().size(), 1U) << "a checkpoint would hold what the failed round has begun";
  EXPECT_EQ(ahead_.rollouts().at(0).experience.samples.rows.at(0).text, "begun");
  const auto failed = ahead_.has(3);
  ASSERT_FALSE(failed.ok());
  EXPECT_EQ(failed.error().what, "no reward");
}

TEST_F(RolloutAheadTest, AnExceptionIsAnError) {
  ASSERT_OK(ahead_.begin([](RolloutAhead::Rollouts&) -> Result<> { throw std::runtime_error("no memory"); }));
  ahead_.wait();
  const auto failed = ahead_.has(1);
  ASSERT_FALSE(failed.ok());
  EXPECT_EQ(failed.error().kind, ErrorKind::kInternal);
  EXPECT_THAT(failed.error().what, testing::HasSubstr("no memory"));
}

TEST_F(RolloutAheadTest, ACheckpointHoldsAllOfThem) {
  ASSERT_OK(ahead_.make_now(adds({rollout_of(3, "kept"), rollout_of(4, "begun", false)})));
  StatefulRegistry saved, loaded;
  RolloutAhead other;
  ASSERT_OK(saved.add(ahead_));
  ASSERT_OK(loaded.add(other));
  ASSERT_OK_AND_ASSIGN(const StateSnapshot snapshot, saved.save());
  ASSERT_OK(loaded.load(snapshot, "checkpoint"));
  ASSERT_EQ(other.rollouts().size(), 2U);
  const AheadRollout& begun = other.rollouts().at(1);
  EXPECT_EQ(begun.step, 4);
  EXPECT_EQ(begun.first_round, 2);
  EXPECT_EQ(begun.num_pieces, 1);
  EXPECT_EQ(begun.is_done, std::vector<uint8_t>{0});
  EXPECT_FALSE(begun.is_whole);
  EXPECT_EQ(begun.experience.samples.rows.at(0).spans.at(1).version, 5);
  ASSERT_TRUE(other.has(3).value());
  ASSERT_OK_AND_ASSIGN(const Experience made, other.take(3, metrics_));
  EXPECT_EQ(encode_experience(made), encode_experience(rollout_of(3, "kept").experience));
  EXPECT_EQ(metrics_.value("timing_s/gen"), 2.0);
}

}  // namespace
}  // namespace mortise
