// A replay buffer and over-sampling in whole runs: which groups a step learns from, with which log-probs, and that a
// resume finds all of them.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <map>

#include "program.h"
#include "run_bits.h"

namespace mortise::test {
namespace {

using testing::HasSubstr;

const std::string kRun =
    "train run.toml data.train_batch_size=8 actor.ppo_mini_batch_size=8 rollout.n=4 trainer.total_training_steps=6 "
    "trainer.save_freq=1 trainer.logger='[]' ";
// The model of the quickstart: enough of its groups are replayed or wait.
const std::string kLearns;
const std::string kBuffer = kRun + "algorithm.replay_buffer.enable=true algorithm.replay_buffer.max_age=3 ";

const std::string kTwoAhead =
    "trainer.mode=async trainer.max_staleness=2 algorithm.rollout_correction.rollout_is=token ";

std::vector<Json> dumped(const TaskFolder& task, int64_t step) {
  return rows_of(task.path() / "dump" / (std::to_string(step) + ".jsonl"));
}

// Rows of earlier steps are those of these steps, with their rewards and advantages.
TEST(ReplayBufferRuns, GroupsComeBackAsTheyWere) {
  const TaskFolder task;
  const Outcome done = task.mortise(kBuffer + "trainer.rollout_data_dir=dump");
  ASSERT_EQ(done.code, 0) << done.output;
  const std::vector<Json> steps = rows_of(task.path() / "out/metrics.jsonl");
  std::map<int64_t, std::map<std::string, Json>> seen;  // by step, by tokens
  double num_replayed = 0;
  for (int64_t step = 1; step <= 6; ++step) {
    const Json& metrics = steps[static_cast<size_t>(step) - 1];
    double of_step = 0;
    for (const Json& row : dumped(task, step)) {
      const std::string tokens = dump_json(Json{row["prompt_token_ids"], row["token_ids"], row["sample_index"]});
      if (!row.contains("sampled_in_step")) {
        EXPECT_EQ(row["weight_version"], step - 1);
        seen[step][tokens] = row;
        continue;
      }
      of_step += 1.0 / 4.0;
      const auto from = row["sampled_in_step"].get<int64_t>();
      EXPECT_LT(from, step);
      EXPECT_GE(from, step - 3);
      ASSERT_TRUE(seen[from].contains(tokens)) << row;
      const Json& first = seen[from][tokens];
      for (const char* name : {"score", "log_probs", "weight_version", "advantage", "finish_reason", "output"})
        EXPECT_EQ(row[name], first[name]) << name;
    }
    EXPECT_DOUBLE_EQ(number_of(metrics, "training/replay_buffer/replaced"), of_step);
    EXPECT_EQ(number_of(metrics, "training/off_policy/trajectory_staleness") > 0.0, of_step > 0);
    num_replayed += of_step;
  }
  EXPECT_GT(num_replayed, 0.0);
}

// One update a step: the ratio of its own rows is 1, and that of replayed ones is the policy's probability over the
// sampler's. With the weights of a rollout correction all ratios are 1, and the weights correct instead.
TEST(ReplayBufferRuns, TheRatioOfAReplayedRowIsToThePolicyThatSampledIt) {
  const std::string correction = "algorithm.rollout_correction.";
  const std::vector<std::pair<std::string, bool>> cases{
      {"", false},
      {correction + "rollout_rs=token_k1 " + correction + "rollout_rs_threshold=1000", false},  // rejects nothing
      {correction + "rollout_is=token", true}};
  for (const auto& [settings, is_corrected] : cases) {
    const TaskFolder task;
    const Outcome done =
        task.mortise(kBuffer + "trainer.rollout_data_dir=dump trainer.rollout_data_tokens=100 " + settings);
    ASSERT_EQ(done.code, 0) << done.output;
    double farthest = 0;
    for (int64_t step = 1; step <= 6; ++step) {
      for (const Json& row : dumped(task, step)) {
        const Json& tokens = row["tokens"];
        for (size_t t = 0; t < tokens["ratio"].size(); ++t) {
          const auto ratio = tokens["ratio"][t].get<double>();
          const double gap = tokens["log_prob"][t].get<double>() - tokens["rollout_log_prob"][t].get<double>();
          const bool is_moved = row.contains("sampled_in_step") && !is_corrected;
          EXPECT_NEAR(ratio, is_moved ? std::exp(gap) : 1.0, 2e-3) << row["sample_index"];
          if (row.contains("sampled_in_step")) farthest = std::max(farthest, std::abs(gap));
        }
      }
    }
    EXPECT_GT(farthest, 0.02) << "the policy has moved since";
  }
}

TEST(ReplayBufferRuns, AResumeFindsIt) {
  expect_resumed_bits(kBuffer, 3, 6, kLearns);
  expect_resumed_bits(kBuffer + "actor.ppo_mini_batch_size=4 actor.ppo_epochs=2 trainer.mode=one_step_off", 4, 6,
                      kLearns);
  expect_resumed_bits(kBuffer + "algorithm.rollout_correction.bypass_mode=true", 3, 6, kLearns);
  expect_resumed_bits(kBuffer + kTwoAhead, 4, 6, kLearns);
}

// Rows that several versions of the weights sampled come back with all of them, and the limit of age counts from the
// step that first learnt from them.
TEST(ReplayBufferRuns, GroupsThatWereSampledAheadComeBackAsTheyWere) {
  const TaskFolder task;
  const Outcome done = task.mortise(kBuffer + kTwoAhead + "trainer.rollout_data_dir=dump");
  ASSERT_EQ(done.code, 0) << done.output;
  std::map<int64_t, std::map<std::string, Json>> seen;  // by step, by tokens
  size_t num_replayed = 0, num_spanning = 0;
  for (int64_t step = 1; step <= 6; ++step) {
    for (const Json& row : dumped(task, step)) {
      const std::string tokens = dump_json(Json{row["prompt_token_ids"], row["token_ids"], row["sample_index"]});
      if (!row.contains("sampled_in_step")) {
        EXPECT_GE(row["weight_version"], step - 3);
        seen[step][tokens] = row;
        continue;
      }
      const auto from = row["sampled_in_step"].get<int64_t>();
      EXPECT_LT(from, step);
      EXPECT_GE(from, step - 3);
      ASSERT_TRUE(seen[from].contains(tokens)) << row;
      const Json& first = seen[from][tokens];
      for (const char* name : {"score", "log_probs", "weight_version", "advantage"})
        EXPECT_EQ(row[name], first[name]) << name;
      ASSERT_EQ(row.contains("weight_versions"), first.contains("weight_versions"));
      if (first.contains("weight_versions")) {
        EXPECT_EQ(row["weight_versions"], first["weight_versions"]);
        num_spanning += first["weight_versions"].size() > 1 ? 1 : 0;
      }
      ++num_replayed;
    }
  }
  EXPECT_GT(num_replayed, 0U);
  EXPECT_GT(num_spanning, 0U);
}

TEST(ReplayBufferRuns, WhatWouldNotBeRightIsRefused) {
  const TaskFolder task;
  const auto refused = [&](const std::string& settings) {
    const Outcome outcome = task.mortise("train run.toml --dry-run " + settings);
    EXPECT_EQ(outcome.code, 2) << settings << outcome.output;
    return outcome.output;
  };
  const std::string on = "algorithm.replay_buffer.enable=true ";
  EXPECT_THAT(refused(on + "rollout.n=1"), HasSubstr("rollout.n is 1, and the rewards of one completion never differ"));
  EXPECT_THAT(refused(on + "algorithm.filter_groups.enable=true"), HasSubstr("already leaves out the groups"));
  EXPECT_THAT(refused(on + "algorithm.multi_objective_aggregation=normalize_then_sum"), HasSubstr("only their sum"));
  EXPECT_THAT(refused(on + "algorithm.use_kl_in_reward=true"), HasSubstr("those of an earlier step"));
  EXPECT_THAT(refused(on + "teacher.path=model teacher.advantage_coef=0.5"),
              HasSubstr("groups whose rewards do not differ"));
  EXPECT_THAT(refused(on + "trainer.rollout_probs_diff_limit=0.1"), HasSubstr("an older policy sampled"));
  const Outcome remembers = task.mortise("train run.toml algorithm.adv_estimator=bnpo " + on);
  EXPECT_EQ(remembers.code, 2) << remembers.output;
  EXPECT_THAT(remembers.output, HasSubstr("remembers the rewards of earlier steps"));
  EXPECT_THAT(refused(on + "rollout.filtered_log_probs=true rollout.top_k=5"), HasSubstr("the weights of the step"));
  for (const std::string estimator : {"gae", "remax", "gdpo", "optimal_token_baseline", "reinforce_plus_plus"}) {
    EXPECT_THAT(refused(on + "algorithm.adv_estimator=" + estimator),
                HasSubstr("the advantage estimator " + estimator + " does not only compare"));
  }
}

const std::string kOver = kRun + "rollout.over_sampling=1.5 data.max_response_length=24 rollout.n=3 ";

// Rows that were not finished continue with newer weights and keep their first tokens.
TEST(OverSamplingRuns, UnfinishedRowsContinueInTheNextStep) {
  const TaskFolder task;
  const Outcome done =
      task.mortise(kOver + "trainer.rollout_data_dir=dump algorithm.rollout_correction.rollout_is=token");
  ASSERT_EQ(done.code, 0) << done.output;
  EXPECT_THAT(done.output, HasSubstr("come from weights that are up to 16 steps old"));
  size_t num_spanning = 0;
  for (int64_t step = 1; step <= 6; ++step) {
    const std::vector<Json> rows = dumped(task, step);
    ASSERT_EQ(rows.size(), 24U);
    for (const Json& row : rows) {
      EXPECT_EQ(row["log_probs"].size(), row["token_ids"].size());
      const Json& spans = row["weight_versions"];
      EXPECT_EQ(spans[0]["version"], row["weight_version"]);
      EXPECT_EQ(spans.back()["end"], row["token_ids"].size());
      EXPECT_LT(spans.back()["version"], step);
      num_spanning += spans.size() > 1 ? 1 : 0;
    }
  }
  EXPECT_GT(num_spanning, 0U);
  const std::vector<Json> steps = rows_of(task.path() / "out/metrics.jsonl");
  for (const Json& row : steps) EXPECT_EQ(number_of(row, "training/over_sampling/carried"), 4.0);
  // The first step's rows are the shortest of those that it began.
  EXPECT_LT(number_of(steps[0], "response_length/mean"), number_of(steps[5], "response_length/mean"));
}

TEST(OverSamplingRuns, AResumeFindsThem) {
  expect_resumed_bits(kOver + "algorithm.rollout_correction.rollout_is=token", 3, 6, kLearns);
  expect_resumed_bits(kOver + "algorithm.replay_buffer.enable=true algorithm.rollout_correction.bypass_mode=true", 2, 6,
                      kLearns);
}

TEST(OverSamplingRuns, WhatNeedsWholeCompletionsIsRefused) {
  const TaskFolder task;
  const auto refused = [&](const std::string& settings, int code = 2) {
    const Outcome outcome = task.mortise("train run.toml trainer.logger='[]' rollout.over_sampling=1.5 " + settings);
    EXPECT_EQ(outcome.code, code) << settings << outcome.output;
    return outcome.output;
  };
  EXPECT_THAT(refused("algorithm.filter_groups.enable=true"), HasSubstr("needs whole completions"));
  EXPECT_THAT(refused("rollout.stop='[\"7\"]'"), HasSubstr("'rollout.over_sampling' is 1.5"));
  EXPECT_THAT(refused("trainer.mode=async"), HasSubstr("which samples them ahead"));
  EXPECT_THAT(refused("rollout.filtered_log_probs=true rollout.top_k=5"), HasSubstr("the weights of the step"));
  EXPECT_THAT(refused("data.train_batch_size=1 actor.ppo_mini_batch_size=1"), HasSubstr("several groups per step"));
  EXPECT_THAT(refused("rollout.over_sampling=2"), HasSubstr("rollout.over_sampling"));
  EXPECT_THAT(refused("algorithm.adv_estimator=remax"), HasSubstr("samples again for its baselines"));
  task.write("rows.jsonl", "{}\n");
  EXPECT_THAT(refused("rollout.name=replay rollout.replay.path=rows.jsonl"), HasSubstr("never gets any"));
  EXPECT_EQ(task.mortise("train run.toml --dry-run rollout.over_sampling=1.2").code, 0);
}

// 1.1 x 50 is a little above 55 in floating point.
TEST(OverSamplingRuns, ARoundedProductIsNotOneGroupMore) {
  const TaskFolder task;
  const Outcome done = task.mortise(
      "train run.toml data.train_batch_size=50 actor.ppo_mini_batch_size=50 rollout.n=3 trainer.logger='[]' "
      "trainer.total_training_steps=1 rollout.over_sampling=1.1 algorithm.rollout_correction.rollout_is=token");
  ASSERT_EQ(done.code, 0) << done.output;
  const std::vector<Json> steps = rows_of(task.path() / "out/metrics.jsonl");
  ASSERT_FALSE(steps.empty());
  EXPECT_EQ(number_of(steps[0], "training/over_sampling/carried"), 5.0);
}

}  // namespace
}  // namespace mortise::test
