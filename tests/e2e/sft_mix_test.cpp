// Supervised rows within reinforcement learning, in whole runs: what a run reports and refuses, resumes from inside a step
// and inside a pass over the rows, and what a run learns with them that it does not learn without.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "program.h"
#include "run_bits.h"

namespace mortise::test {
namespace {

using testing::AllOf;
using testing::HasSubstr;

// Sums of one digit each have two tokens with their end.
std::string sums(int count) {
  std::string rows;
  for (int i = 0; i < count; ++i) {
    const std::string prompt = std::to_string(i % 5) + "+" + std::to_string(i / 5 % 5) + "=";
    rows += dump_json(Json{{"prompt", prompt}, {"response", std::to_string(i % 5 + i / 5 % 5)}}) + "\n";
  }
  return rows;
}

const std::string kFourSteps =
    "train run.toml data.train_batch_size=8 actor.ppo_mini_batch_size=4 trainer.total_training_steps=4 "
    "trainer.save_freq=1 trainer.logger='[]' ";
const std::string kMix = "sft_mix.files=mix.jsonl sft_mix.train_batch_size=3 ";

class SftMix : public testing::Test {
 protected:
  SftMix() { task_.write("mix.jsonl", sums(10)); }
  [[nodiscard]] Outcome dry(const std::string& settings) const {
    return task_.mortise("train run.toml --dry-run " + settings);
  }
  void expect_refused(const std::string& settings, const std::string& text, int code = 2) const {
    const Outcome outcome = dry(settings);
    EXPECT_EQ(outcome.code, code) << settings << outcome.output;
    EXPECT_THAT(outcome.output, HasSubstr(text));
  }
  TaskFolder task_;
};

// An epoch of 12 prompts has two updates of 5 and one of 2, which takes two of five rows.
TEST_F(SftMix, TheSmallerLastUpdateOfAnEpochTakesItsShare) {
  const Outcome done = task_.mortise(
      "train run.toml data.train_max_samples=12 data.train_batch_size=4 actor.ppo_mini_batch_size=5 actor.carry_rows=true "
      "trainer.total_training_steps=3 trainer.logger='[]' sft_mix.files=mix.jsonl sft_mix.train_batch_size=5");
  ASSERT_EQ(done.code, 0) << done.output;
  const std::vector<Json> rows = rows_of(task_.path() / "out/metrics.jsonl");
  ASSERT_EQ(rows.size(), 3U);
  EXPECT_FALSE(rows[0].contains("actor/sft_mix_tokens"));
  EXPECT_EQ(number_of(rows[1], "actor/sft_mix_tokens"), 10.0);
  EXPECT_EQ(number_of(rows[2], "actor/sft_mix_tokens"), (10.0 + 4.0) / 2);
}

TEST_F(SftMix, ReportsEveryUpdatesRows) {
  const Outcome done =
      task_.mortise(kFourSteps + kMix +
                    "sft_mix.mu_peak=0.8 sft_mix.mu_valley=0.2 sft_mix.mu_warmup_steps=2 sft_mix.mu_decay_steps=4");
  ASSERT_EQ(done.code, 0) << done.output;
  const std::vector<Json> rows = rows_of(task_.path() / "out/metrics.jsonl");
  ASSERT_EQ(rows.size(), 4U);
  // Two updates a step: mu is 0 and 0.4, 0.8 and 0.8 - 0.6 (1 - cos(pi / 4)) / 2, ...
  EXPECT_NEAR(number_of(rows[0], "actor/sft_mix_mu"), 0.2, 1e-12);
  EXPECT_NEAR(number_of(rows[1], "actor/sft_mix_mu"), (0.8 + 0.712132034356) / 2, 1e-9);
  EXPECT_NEAR(number_of(rows[3], "actor/sft_mix_mu"), 0.2, 1e-12);
  for (const Json& row : rows) {
    EXPECT_EQ(number_of(row, "actor/sft_mix_tokens"), 6.0);  // a digit and the end each
    EXPECT_GT(number_of(row, "actor/sft_mix_loss"), 0.1);
    EXPECT_GT(number_of(row, "actor/sft_mix_prob"), 0.0);
    EXPECT_LT(number_of(row, "actor/sft_mix_prob"), 1.0);
  }
  EXPECT_LT(number_of(rows[3], "actor/sft_mix_loss"), number_of(rows[0], "actor/sft_mix_loss"));
}

TEST_F(SftMix, DryRunCountsTheRowsAndTheirMemory) {
  const Outcome text = dry(kMix);
  EXPECT_EQ(text.code, 0) << text.output;
  EXPECT_THAT(text.output, HasSubstr("# sft_mix: 3 supervised rows in each update, of 10\n"));
  const auto activations = [&](const std::string& settings) {
    const Outcome outcome = dry("--json " + settings);
    EXPECT_EQ(outcome.code, 0) << outcome.output;
    const Json json = parse_json(outcome.output.substr(outcome.output.find('{')), "dry run").value();
    return json["memory_bytes"]["activations"].get<double>();
  };
  // Passes over the longest chats are larger than those over completions.
  const std::string small = "data.train_batch_size=1 rollout.n=2 actor.ppo_mini_batch_size=1 ";
  const double without = activations(small), with = activations(small + kMix + "sft.max_length=100");
  EXPECT_NEAR(with / without, 3 * 100.0 / (2 * 11.0), 1e-3);
}

TEST_F(SftMix, WhatCannotBeIsRefused) {
  expect_refused(kMix + "sft_mix.rows_per_mean=2", "does not divide the 3 rows of an update");
  expect_refused(kMix + "sft_mix.mu_peak=0", "mu is always 0");
  expect_refused(kMix + "sft_mix.mu_peak=1.5", "sft_mix.mu_peak");
  expect_refused("sft_mix.files=absent.jsonl", "correct sft_mix.files", 3);
  const Outcome unused = dry("sft_mix.mu_peak=0.5");
  EXPECT_EQ(unused.code, 0);
  EXPECT_THAT(unused.output, HasSubstr("'sft_mix' has no effect: sft_mix.files is empty"));
  task_.write("bad.jsonl", R"({"prompt": "1+1="})"
                           "\n");
  expect_refused("sft_mix.files=bad.jsonl", "bad.jsonl:1", 3);
}

TEST_F(SftMix, AResumeContinuesInThePassOverTheRows) {
  // The first checkpoint is after six rows of ten, the second after the second row of the next pass.
  const auto resumed = [](const TaskFolder& task, int64_t stop, const std::string& more) {
    task.write("mix.jsonl", sums(10));
    const std::string command = kFourSteps + kMix + "actor.shuffle=true sft_mix.phi=true " + more;
    ASSERT_EQ(task.mortise(command).code, 0);
    std::filesystem::rename(task.path() / "out", task.path() / "whole");
    cut_back(task.path() / "whole", task.path() / "out", stop, 4);
    const Outcome again = task.mortise(command);
    ASSERT_EQ(again.code, 0) << again.output;
    EXPECT_THAT(again.output, HasSubstr("resumed from"));
    for (const char* file : {"huggingface/model.safetensors", "state.safetensors"}) {
      const Path path = Path("global_step_4") / file;
      EXPECT_EQ(hash_of(task.path() / "whole" / path), hash_of(task.path() / "out" / path)) << stop << file;
    }
  };
  for (const int64_t stop : {1, 2}) resumed(TaskFolder(), stop, "");
  resumed(TaskFolder(), 2, "data.streaming=true data.shuffle_buffer_size=4");
}

// CHORD's second stage: a run continues without the examples. Switched on again, they begin with the first.
TEST_F(SftMix, AResumeMayLeaveTheRowsOut) {
  const auto train = [&](const std::string& mix, const std::string& steps, const std::string& more = "") {
    return task_.mortise(kFourSteps + mix + "trainer.total_training_steps=" + steps + " " + more);
  };
  ASSERT_EQ(train(kMix, "1").code, 0);
  const Outcome refused = train("", "2");
  EXPECT_EQ(refused.code, 2) << refused.output;
  EXPECT_THAT(refused.output, AllOf(HasSubstr("sft_mix.files"), HasSubstr("Give --allow-change")));
  const Outcome without = train("", "2", "--allow-change");
  EXPECT_EQ(without.code, 0) << without.output;
  EXPECT_THAT(without.output, HasSubstr("the state of 'sft_mix.rows' in the checkpoint is dropped"));
  const std::vector<Json> rows = rows_of(task_.path() / "out/metrics.jsonl");
  ASSERT_EQ(rows.size(), 2U);
  EXPECT_TRUE(rows[0].contains("actor/sft_mix_loss"));
  EXPECT_FALSE(rows[1].contains("actor/sft_mix_loss"));
  const Outcome again = train(kMix, "3", "--allow-change");
  EXPECT_EQ(again.code, 0) << again.output;
}

// Rows may be added to a run that had none; rows that differ are told.
TEST_F(SftMix, AResumeTellsOfOtherRows) {
  ASSERT_EQ(task_.mortise(kFourSteps + "trainer.total_training_steps=2").code, 0);
  EXPECT_EQ(task_.mortise(kFourSteps + kMix).code, 2);
  const Outcome added = task_.mortise(kFourSteps + kMix + "trainer.total_training_steps=3 --allow-change");
  EXPECT_EQ(added.code, 0) << added.output;
  task_.write("mix.jsonl", sums(9) + sums(1));
  const Outcome edited = task_.mortise(kFourSteps + kMix);
  EXPECT_NE(edited.code, 0);
  EXPECT_THAT(edited.output, HasSubstr("sft_mix.files: the training rows differ from those of the checkpoint"));
}

// Fresh weights write a wanted text of three digits about once in 3000 completions. The recipe learns it from examples;
// without them no completion is rewarded.
TEST_F(SftMix, TheRecipeLearnsWhatSamplingDoesNotFind) {
  std::string examples;
  for (int i = 10; i < 20; ++i)
    examples += dump_json(Json{{"prompt", std::to_string(i) + "+11="}, {"response", "123"}}) + "\n";
  task_.write("examples.jsonl", examples);
  const auto last_score = [&](const std::string& more) {
    const Outcome done = task_.mortise(
        "train " + std::string(MORTISE_SOURCE_DIR) +
        "/configs/chord.toml model.path=model data.train_files=data/train.jsonl data.val_files=[] reward.0.use=regex "
        "reward.0.pattern='^123$' reward.0.column=null data.train_batch_size=8 actor.ppo_mini_batch_size=8 "
        "trainer.total_training_steps=50 sft_mix.mu_decay_steps=30 sft_mix.train_batch_size=8 "
        "trainer.default_local_dir=out trainer.num_threads=2 trainer.logger='[]' --resume never " +
        more);
    EXPECT_EQ(done.code, 0) << done.output;
    return mean_score_of_last(task_.path() / "out/metrics.jsonl", 3, "critic/score/mean");
  };
  EXPECT_LT(last_score("sft_mix.files=[]"), 0.05);
  EXPECT_GT(last_score("sft_mix.files=examples.jsonl"), 0.6);
}

}  // namespace
}  // namespace mortise::test
