// trainer.mode = "one_step_off" and "async": completions are as old as the settings say whatever the machine does, and
// nothing is lost between steps.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

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

// Rows of three tokens, each with newer weights than the one before.
std::vector<std::string> in_pieces(const std::vector<std::string>& more = {}) {
  std::vector<std::string> all{"trainer.mode=async", "trainer.max_staleness=3", "trainer.total_training_steps=6",
                               "algorithm.rollout_correction.rollout_is=token"};
  all.insert(all.end(), more.begin(), more.end());
  return all;
}

TEST(Ahead, EveryStepButTheFirstLearnsFromTheWeightsBefore) {
  const TinyTask task;
  const Outcome outcome = task.mortise("train", "out", ahead());
  ASSERT_EQ(outcome.code, 0) << outcome.output;
  for (const char* text : {"completions come from weights that are up to 1 step old",
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

// The rule that says which weights sample which token, over all completions of a run; and staleness is never above it.
TEST(Ahead, EachTokenHasTheWeightsOfTheRule) {
  const TinyTask task;
  const Outcome outcome = task.mortise("train", "out", in_pieces());
  ASSERT_EQ(outcome.code, 0) << outcome.output;
  EXPECT_NE(outcome.output.find("weights that are up to 3 steps old"), std::string::npos) << outcome.output;
  constexpr int64_t kUpdates = 4;  // in each step
  for (int64_t step = 1; step <= kSteps; ++step) {
    const std::vector<Json> rows = rows_of(task.path() / ("out/dump/" + std::to_string(step) + ".jsonl"));
    ASSERT_EQ(rows.size(), 16U);
    for (const Json& row : rows) {
      Json spans = Json::array({{{"version", row["weight_version"]}, {"start", 0}, {"end", row["token_ids"].size()}}});
      if (row.contains("weight_versions")) spans = row["weight_versions"];
      EXPECT_EQ(spans.front()["version"], row["weight_version"]);
      int64_t end = 0;
      for (const Json& span : spans) {
        EXPECT_EQ(span["start"], end);
        end = span["end"];
        const int64_t now = kUpdates * (step - 1), version = span["version"];
        EXPECT_LE(now - version, 3 * kUpdates) << "step " << step;
        // A token in each round, from three steps before on. Steps 1 to 3 have fewer rounds.
        const int64_t rounds_before = 3 - span["start"].get<int64_t>();
        EXPECT_TRUE(step < 4 || version == now - kUpdates * rounds_before) << "step " << step << ": " << span;
      }
      EXPECT_EQ(end, static_cast<int64_t>(row["token_ids"].size()));
      EXPECT_EQ(row["log_probs"].size(), row["token_ids"].size());
    }
  }
  const std::vector<Json> metrics = rows_of(task.path() / "out/metrics.jsonl");
  EXPECT_EQ(number_of(metrics.at(5), "training/off_policy/trajectory_staleness_worst"), 3.0 * kUpdates);
  EXPECT_GT(number_of(metrics.at(5), "training/off_policy/trajectory_spans"), 1.5);
  EXPECT_LT(number_of(metrics.at(5), "training/off_policy/token_staleness"), 3.0 * kUpdates);
}

// Where nothing is learnt, the log-probs of joined pieces are those that the trainer computes for the whole row.
TEST(Ahead, LogProbsOfPiecesBelongToTheirTokens) {
  const TinyTask task;
  const Outcome outcome = task.mortise("train", "out", in_pieces({"actor.optim.lr=0"}));
  ASSERT_EQ(outcome.code, 0) << outcome.output;
  for (const Json& row : rows_of(task.path() / "out/metrics.jsonl"))
    EXPECT_LT(number_of(row, "training/rollout_probs_diff_max"), 1e-4);
}

TEST(Ahead, AResumeGoesOnWithUnfinishedRows) {
  const TinyTask task;
  const std::vector<std::string> settings = in_pieces({"trainer.max_actor_ckpt_to_keep=null"});
  const Outcome straight = task.mortise("train", "straight", settings);
  ASSERT_EQ(straight.code, 0) << straight.output;
  expect_same_bits_from_every_step(task, settings, kSteps);
  // Settings that allow nothing of what the checkpoint holds.
  cut_back(task.path() / "straight", task.path() / "newer", 3, kSteps);
  const Outcome newer = task.mortise("train", "newer", in_pieces({"trainer.mode=sync", "--allow-change"}));
  ASSERT_EQ(newer.code, 0) << newer.output;
  EXPECT_NE(newer.output.find("which do not fit the new settings"), std::string::npos) << newer.output;
  EXPECT_EQ(rows_of(task.path() / "newer/metrics.jsonl").at(3)["training/off_policy/trajectory_staleness"], 0.0);
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
  const std::vector<std::string> settings = in_pieces({"trainer.save_freq=1"});
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
  // Updates that read what sampling has computed: the run decodes those rows with the weights of now.
  allowed.emplace_back("actor.ppo_mini_batch_size=4");
  std::vector<std::vector<Json>> updates;
  for (const std::string mib : {"1024", "0"}) {
    cut_back(task.path() / "straight", task.path() / mib, 2, kSteps);
    std::vector<std::string> one_batch = allowed;
    one_batch.push_back("rollout.reuse_forward_mib=" + mib);
    const Outcome done = task.mortise("train", mib, one_batch);
    ASSERT_EQ(done.code, 0) << done.output;
    EXPECT_EQ(done.output.find("decodes the tokens of 16 rows again") != std::string::npos, mib != "0") << done.output;
    updates.push_back(rows_of(task.path() / mib / "updates.jsonl"));
  }
  ASSERT_EQ(updates[0].size(), updates[1].size());
  const auto first = std::ranges::find_if(updates[0], [](const Json& row) { return number_of(row, "step") == 3; });
  ASSERT_NE(first, updates[0].end());
  const Json& computed = updates[1].at(static_cast<size_t>(first - updates[0].begin()));
  for (const auto& [key, value] : computed.items()) {
    if (!value.is_number()) continue;
    const double want = value.get<double>();
    EXPECT_NEAR(number_of(*first, key), want, 1e-5 * (1.0 + std::abs(want))) << key;
  }
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
    EXPECT_NE(outcome.output.find("completions for the next steps, which do not fit the new settings"),
              std::string::npos)
        << outcome.output;
    const std::vector<Json> rows = rows_of(task.path() / n / "metrics.jsonl");
    EXPECT_EQ(rows.at(2)["training/off_policy/trajectory_staleness"], 0.0) << "sampled again";
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

TEST(Ahead, WhatNeedsWholeRowsIsRefusedWithPieces) {
  const TinyTask task;
  task.write("replay.jsonl", R"({"step": 1, "prompt_index": 0, "sample_index": 0, "token_ids": [5]})");
  const std::vector<std::pair<std::vector<std::string>, std::string>> cases{
      {{"rollout.stop=[\"7\"]"}, "'rollout.stop' needs whole completions"},
      {{"algorithm.filter_groups.enable=true"}, "'algorithm.filter_groups.enable' needs whole completions"},
      {{"rollout.name=replay", "rollout.replay.path=replay.jsonl"}, "'replay' never gets any"}};
  for (const auto& [more, text] : cases) {
    const Outcome outcome = task.mortise("train", "out", in_pieces(more));
    EXPECT_EQ(outcome.code, 2) << outcome.output;
    EXPECT_NE(outcome.output.find(text), std::string::npos) << outcome.output;
  }
  const Outcome whole = task.mortise("train", "whole", in_pieces({"rollout.stop=[\"7\"]", "trainer.max_staleness=1"}));
  EXPECT_EQ(whole.code, 0) << whole.output;
}

}  // namespace
}  // namespace mortise::test
