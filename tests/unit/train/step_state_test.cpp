// The work of a step in a checkpoint: all of it comes back, bit by bit.
#include "train/loop/step_state.h"

#include <gmock/gmock.h>

#include <cmath>
#include <cstring>
#include <limits>

#include "checkpoint/reader.h"
#include "checkpoint/writer.h"
#include "support/temp_dir.h"

namespace mortise {
namespace {

constexpr double kNotMeasured = std::numeric_limits<double>::quiet_NaN();

// Uneven everywhere: rows of 2, 0 and 1 tokens, one without log-probs, a text that is no UTF-8, NaN among the rewards.
StepWork some_work() {
  StepWork work;
  work.step = 8;
  work.seconds = 0.25;
  work.experience.samples.num_samples_per_prompt = 3;
  work.experience.samples.rows.push_back({0, 0, {5, 6}, {-0.5F, -1e-30F}, FinishReason::kStop, 4, "5\xFF"});
  work.experience.samples.rows.push_back({0, 1, {}, {}, FinishReason::kAbort, 4, ""});
  work.experience.samples.rows.push_back({0, 2, {7}, {}, FinishReason::kLength, 5, "7"});
  work.experience.scored.columns.push_back({"match",
                                            2.0,
                                            {1.0, kNotMeasured, 0.0},
                                            {{"a", {1, kNotMeasured, 3}}, {"b", {4, 5, 6}}},
                                            1,
                                            {},
                                            {"", "crash", ""}});
  work.experience.scored.columns.push_back({"length", 0.5, {0.1, 0.2, 0.3}, {}});
  work.experience.scored.rewards = {2.05, kNotMeasured, 0.15};
  work.experience.scored.row_valid = {1, 0, 1};
  work.experience.prompts.step = 8;
  work.experience.prompts.prompts.push_back({{1, 2}, "1+", "", "unknown", Json::object(), 3, 2, {4, 5}, {0, 1}});
  work.table = make_step_table(work.experience.prompts, work.experience.samples);
  work.table.put<column::OldEntropy>({0.5F, 0.25F, 0.125F});
  work.table.put<column::FirstLogProb>({-0.25F, 0.0F, -3.0F});
  work.table.put<column::RolloutIsWeights>({1.5F, 0.0F, 1.0F});
  work.table.put<column::ResponseMask>({1, 0, 1});
  work.table.put<column::OldLogProb>({-0.25F, -2.0F, -3.0F});
  work.table.put<column::RowValid>({1, 0, 1});
  work.table.put<column::TokenLevelRewards>({0, 2, 0.1F});
  work.table.put<column::Advantages>({1, -1, 0.5F});
  for (const double scale : {1.0, 3.0}) {
    UpdateReport& report = work.updates.emplace_back();
    report.sums = {0.1 * scale, 0.2, 0.3, 0.4, 0.5, 0.6, 11, 0.7, 9};
    report.grad_norm = std::numeric_limits<double>::infinity();
    report.lr = 1e-3 * scale;
    report.skipped = scale > 1.0;
    report.metrics.add_mean("actor/pg_loss", 0.7 * scale, 2);
  }
  work.metrics.add("timing_s/gen", 0.1);
  work.metrics.add_mean("actor/pg_loss", 0.1, 3);
  return work;
}

// Everything in a snapshot as text and bytes.
std::map<std::string, std::string> contents(const StepState& state) {
  StateSnapshot snapshot;
  StateWriter writer("step", &snapshot);
  EXPECT_OK(state.save_state(writer));
  EXPECT_OK(writer.status());
  std::map<std::string, std::string> out;
  for (const auto& [key, value] : snapshot.scalars["step"]) {
    const auto* number = std::get_if<double>(&value);
    const auto* integer = std::get_if<int64_t>(&value);
    out[key] = number != nullptr    ? std::to_string(*number)
               : integer != nullptr ? std::to_string(*integer)
                                    : std::to_string(std::get<bool>(value));
  }
  for (const TensorView& tensor : snapshot.tensors)
    out[tensor.name].assign(reinterpret_cast<const char*>(tensor.bytes.data()), tensor.bytes.size());
  return out;
}

// Through the files of a checkpoint.
void reload(StepState& from, StepState& to) {
  const test::TempDir dir;
  StatefulRegistry saved, loaded;
  ASSERT_OK(saved.add(from));
  ASSERT_OK(loaded.add(to));
  CheckpointRequest request;
  request.place = {7, 2};
  request.state = saved.save().value();
  ASSERT_OK_AND_ASSIGN(const SavedCheckpoint written, CheckpointWriter(default_env(), dir.path()).save(request));
  ASSERT_OK_AND_ASSIGN(const Checkpoint checkpoint, Checkpoint::open(default_env(), written.path));
  ASSERT_OK(checkpoint.load_into(loaded));
}

TEST(StepState, ComesBackWhole) {
  StepState before, after;
  before.work = some_work();
  after.work.updates.resize(5);  // is replaced
  reload(before, after);
  EXPECT_EQ(contents(after), contents(before));
  const StepWork& work = after.work;
  EXPECT_EQ(work.step, 8);
  ASSERT_EQ(work.experience.samples.rows.size(), 3U);
  EXPECT_THAT(work.experience.samples.rows[0].token_ids, testing::ElementsAre(5, 6));
  EXPECT_EQ(work.experience.samples.rows[0].text, "5\xFF");
  EXPECT_EQ(work.experience.samples.rows[1].finish_reason, FinishReason::kAbort);
  EXPECT_EQ(work.experience.samples.rows[2].weight_version, 5);
  EXPECT_THAT(work.experience.scored.columns[0].errors, testing::ElementsAre("", "crash", ""));
  EXPECT_TRUE(std::isnan(work.experience.scored.columns[0].extra.at("a")[1]));
  EXPECT_FALSE(work.table.has<column::RefLogProb>());
  EXPECT_EQ(work.table.get<column::TokenLevelRewards>()[1], 2.0F);
  EXPECT_THAT(work.table.get<column::ResponseMask>(), testing::ElementsAre(1, 0, 1));
  EXPECT_THAT(work.table.get<column::SampleMask>(), testing::ElementsAre(1, 1, 1));
  EXPECT_EQ(work.table.row(0).response_ids.data(), work.experience.samples.rows[0].token_ids.data());
  ASSERT_EQ(work.updates.size(), 2U);
  EXPECT_TRUE(work.updates[1].skipped);
  EXPECT_EQ(work.updates[1].sums.num_tokens, 11);
  EXPECT_EQ(work.updates[1].sums.bonus_entropy, 0.7);
  EXPECT_EQ(work.updates[1].sums.num_bonus_tokens, 9);
  EXPECT_EQ(work.updates[1].lr, 1e-3 * 3.0);
  EXPECT_EQ(*work.metrics.value("actor/pg_loss"), 0.1 * 3 / 3);
}

TEST(StepState, BetweenStepsThereIsNone) {
  StepState before, after;
  after.work = some_work();
  reload(before, after);
  EXPECT_EQ(after.work.step, 0);
  EXPECT_TRUE(after.work.experience.samples.rows.empty());
  EXPECT_TRUE(after.work.updates.empty());
  EXPECT_TRUE(after.work.metrics.empty());
}

}  // namespace
}  // namespace mortise
