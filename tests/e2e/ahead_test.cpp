// trainer.mode = "one_step_off": completions are one step old whatever the machine does, and nothing is lost between steps.
#include <gtest/gtest.h>

#include "checkpoint/reader.h"
#include "foundation/base/rng.h"
#include "process.h"
#include "run_bits.h"

namespace mortise::test {
namespace {

constexpr int64_t kSteps = 6;

std::vector<std::string> ahead(std::vector<std::string> more = {}) {
  more.insert(more.end(), {"trainer.mode=one_step_off", "trainer.total_training_steps=6"});
  return more;
}

TEST(Ahead, EveryStepButTheFirstLearnsFromTheWeightsBefore) {
  const TinyTask task;
  const Outcome outcome = task.mortise("train", "out", ahead());
  ASSERT_EQ(outcome.code, 0) << outcome.output;
  for (const char* text : {"completions come from the weights of one step earlier",
                           "set algorithm.rollout_correction.rollout_is = \"token\""})
    EXPECT_NE(outcome.output.find(text), std::string::npos) << outcome.output;
  const std::vector<Json> rows = rows_of(task.path() / "out/metrics.jsonl");
  ASSERT_EQ(rows.size(), static_cast<size_t>(kSteps));
  const double updates = rows[1]["training/off_policy/trajectory_staleness"];  // updates of a step
  EXPECT_GE(updates, 1.0);
  for (size_t i = 0; i < rows.size(); ++i) {
    EXPECT_EQ(rows[i]["training/off_policy/trajectory_staleness"], i == 0 ? 0.0 : updates) << i;
    const double diff = rows[i]["training/rollout_probs_diff_mean"];
    EXPECT_EQ(diff > 1e-6, i > 0) << "step " << i + 1 << " was sampled with other weights than it says: " << diff;
  }
}

// Also where a checkpoint has to hold groups that are left over.
TEST(Ahead, AResumeFromEveryStepGivesTheSameBits) {
  for (const std::string filter : {"false", "true"}) {
    const std::vector<std::string> settings =
        ahead({"trainer.max_actor_ckpt_to_keep=null", "algorithm.filter_groups.enable=" + filter,
               "algorithm.rollout_correction.rollout_is=token"});
    const TinyTask task;
    const Outcome straight = task.mortise("train", "straight", settings);
    ASSERT_EQ(straight.code, 0) << straight.output;
    EXPECT_EQ(straight.output.find("nothing corrects"), std::string::npos) << straight.output;
    expect_same_bits_from_every_step(task, settings, kSteps);
  }
}

TEST(Ahead, AKilledRunGivesTheSameBits) {
  const TinyTask task;
  const std::vector<std::string> settings = ahead({"trainer.save_freq=1"});
  const Stopwatch watch;
  ASSERT_EQ(task.mortise("train", "straight", settings).code, 0);
  const auto run_us = static_cast<uint64_t>(watch.elapsed_ns() / 1000);
  const auto expected = bits_of_run(task.path() / "straight", kSteps);
  RandomStream random({.seed = 5});
  for (int kills = 0; kills < 5; ++kills) {
    Process process(task.words("train", "out", settings), task.path(), task.path() / "console.txt");
    usleep(static_cast<useconds_t>(random.next_below(run_us)));
    process.kill_and_wait();
  }
  const Outcome last = task.mortise("train", "out", settings);
  ASSERT_EQ(last.code, 0) << last.output;
  expect_same_bits(bits_of_run(task.path() / "out", kSteps), expected, "killed");
}

// The rewards of step 3 fail while step 2 learns: step 2 is finished and kept, and a resume begins where step 3 did.
TEST(Ahead, AFailedRolloutLosesNoStep) {
  const TinyTask task;
  std::string rows;
  for (int i = 0; i < 12; ++i)
    rows += std::string(R"({"prompt": "1+1=", "scores": )") + (i < 8 ? "1" : "\"much\"") + "}\n";
  task.write("mid.jsonl", rows);
  const std::vector<std::string> settings =
      ahead({"trainer.save_freq=-1", "data.train_files=mid.jsonl", "data.shuffle=false", "~data.train_max_samples",
             "reward.0.use=column", "reward.0.key=scores", "data.columns.scores=json", "~reward.0.pattern"});
  for (int i = 0; i < 2; ++i) {
    const Outcome outcome = task.mortise("train", "out", settings);
    EXPECT_EQ(outcome.code, 9) << outcome.output;
    const std::string told = i == 0 ? "the 2 finished steps are saved in" : "after step 2\n";
    EXPECT_NE(outcome.output.find(told), std::string::npos) << outcome.output;
    EXPECT_TRUE(default_env().exists(task.path() / "out/global_step_2"));
    EXPECT_EQ(rows_of(task.path() / "out/metrics.jsonl").size(), 2U);
  }
}

// A checkpoint of such a run has the rollout of the next step. A run that samples in turn learns from it first.
TEST(Ahead, ARunMayGoOnInTurn) {
  const TinyTask task;
  const std::vector<std::string> settings = ahead({"trainer.max_actor_ckpt_to_keep=null"});
  ASSERT_EQ(task.mortise("train", "straight", settings).code, 0);
  cut_back(task.path() / "straight", task.path() / "out", 2, kSteps);
  const std::vector<std::string> in_turn{"trainer.total_training_steps=6", "trainer.mode=sync"};
  const Outcome refused = task.mortise("train", "out", in_turn);
  EXPECT_EQ(refused.code, 2) << refused.output;
  EXPECT_NE(refused.output.find("trainer.mode: \"one_step_off\" -> \"sync\""), std::string::npos) << refused.output;
  std::vector<std::string> allowed = in_turn;
  allowed.emplace_back("--allow-change");
  const Outcome outcome = task.mortise("train", "out", allowed);
  ASSERT_EQ(outcome.code, 0) << outcome.output;
  const std::vector<Json> rows = rows_of(task.path() / "out/metrics.jsonl");
  const char* const age = "training/off_policy/trajectory_staleness";
  EXPECT_GT(rows.at(2)[age], 0.0);
  EXPECT_EQ(rows.at(3)[age], 0.0);
}

// The completions of the next step are of the old number of rows: they cannot be learnt from, and the run says so.
TEST(Ahead, AResumeWithOtherRowsLeavesTheRolloutOut) {
  const TinyTask task;
  const std::vector<std::string> settings = ahead({"trainer.max_actor_ckpt_to_keep=null"});
  ASSERT_EQ(task.mortise("train", "straight", settings).code, 0);
  for (const char* n : {"rollout.n=2", "rollout.n=8"}) {  // it has 4
    cut_back(task.path() / "straight", task.path() / n, 2, kSteps);
    const Outcome outcome = task.mortise("train", n, ahead({n, "--allow-change"}));
    ASSERT_EQ(outcome.code, 0) << outcome.output;
    EXPECT_NE(outcome.output.find("completions for the next step, which now has"), std::string::npos) << outcome.output;
    const std::vector<Json> rows = rows_of(task.path() / n / "metrics.jsonl");
    EXPECT_EQ(rows.at(2)["training/off_policy/trajectory_staleness"], 0.0) << "sampled anew";
  }
}

TEST(Ahead, WhatCannotRunBesideUpdatesIsRefused) {
  const TinyTask task;
  const std::vector<std::pair<std::vector<std::string>, std::string>> cases{
      {{"trainer.save_freq_updates=1"}, "'trainer.save_freq_updates' saves between them"},
      {{"rollout.sleep_while_training=true"}, "'rollout.sleep_while_training' is true"},
      {{"rollout.filtered_log_probs=true", "rollout.top_p=0.9"}, "with the weights of the step"},
      {{"algorithm.adv_estimator=remax", "~algorithm.adv_params"}, "samples again for its baselines"}};
  for (const auto& [more, text] : cases) {
    const Outcome outcome = task.mortise("train", "out", ahead(more));
    EXPECT_EQ(outcome.code, 2) << outcome.output;
    EXPECT_NE(outcome.output.find("'trainer.mode' is one_step_off"), std::string::npos) << outcome.output;
    EXPECT_NE(outcome.output.find(text), std::string::npos) << outcome.output;
  }
}

}  // namespace
}  // namespace mortise::test
