// Data sets as users have them: files of verl and TRL, patterns, bad rows, weights, curricula and streams in whole runs.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <string>
#include <vector>

#include "program.h"

namespace mortise::test {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::Not;
using testing::SizeIs;

constexpr const char* kShort = " trainer.total_training_steps=3 trainer.num_threads=1 ";
constexpr const char* kChatSettings = " model.custom_chat_template=chat.jinja data.max_prompt_length=8 ";

// The numbers of a run's steps, without times.
std::vector<std::string> numbers_of(const Path& metrics) {
  std::vector<std::string> out;
  for (const Json& row : rows_of(metrics)) {
    std::string line;
    for (const auto& [name, value] : row.items()) {
      const bool varies = name.starts_with("timing") || name.starts_with("perf/") || name == "step_time";
      if (!varies) line += name + "=" + dump_json(value) + " ";
    }
    out.push_back(line);
  }
  return out;
}

// A task folder with the files of verl_rows.py; false without the Python that writes them.
bool write_rows(const TaskFolder& task) {
  const char* python = std::getenv("MORTISE_ORACLES_PYTHON");
  if (python == nullptr || *python == '\0') return false;
  task.write("chat.jinja", "{% for message in messages %}{{ message.content }}{% endfor %}");
  const Outcome made =
      run("HF_HUB_OFFLINE=1 '" + std::string(python) + "' " + MORTISE_SOURCE_DIR + "/tests/e2e/verl_rows.py .",
          task.path());
  EXPECT_EQ(made.code, 0) << made.output;
  return true;
}

TEST(Data, VerlsParquetTrainsAsTheSameRowsInJsonl) {
  const TaskFolder task;
  if (!write_rows(task)) GTEST_SKIP() << "MORTISE_ORACLES_PYTHON is not set: datasets did not write Parquet";
  const std::string reward =
      " reward.0.use=gsm8k reward.0.method=flexible '~reward.0.pattern' trainer.rollout_data_dir=dump";
  for (const char* rows : {"verl.parquet", "verl.jsonl"}) {
    const Outcome outcome =
        task.mortise("train run.toml data.train_files=" + std::string(rows) + " trainer.default_local_dir=" + rows +
                     "_out" + reward + rows + kShort + kChatSettings);
    ASSERT_EQ(outcome.code, 0) << outcome.output;
  }
  EXPECT_THAT(numbers_of(task.path() / "verl.parquet_out/metrics.jsonl"), SizeIs(3));
  EXPECT_EQ(numbers_of(task.path() / "verl.parquet_out/metrics.jsonl"),
            numbers_of(task.path() / "verl.jsonl_out/metrics.jsonl"));
  const std::vector<Json> dump = rows_of(task.path() / "dumpverl.parquet/1.jsonl");
  ASSERT_THAT(dump, SizeIs(16 * 8));
  for (const Json& row : dump) EXPECT_FALSE(row["score"].is_null()) << "the reward finds reward_model.ground_truth";
}

TEST(Data, TrlsSavedFolderTrainsAsTheSameRowsInJsonl) {
  const TaskFolder task;
  if (!write_rows(task)) GTEST_SKIP() << "MORTISE_ORACLES_PYTHON is not set: datasets did not save a folder";
  for (const char* rows : {"saved", "trl.jsonl"}) {
    const Outcome outcome = task.mortise(
        "train run.toml data.train_files=" + std::string(rows) + " trainer.default_local_dir=" + rows +
        "_out reward.0.use=exact_match reward.0.column=solution '~reward.0.pattern'" + kShort + kChatSettings);
    ASSERT_EQ(outcome.code, 0) << outcome.output;
  }
  EXPECT_EQ(numbers_of(task.path() / "saved_out/metrics.jsonl"),
            numbers_of(task.path() / "trl.jsonl_out/metrics.jsonl"));
  const Outcome whole =
      task.mortise("train run.toml --dry-run data.train_files=verl.parquet.x" + std::string(kChatSettings));
  EXPECT_EQ(whole.code, 3);
  EXPECT_THAT(whole.output, HasSubstr("the data file does not exist"));
}

TEST(Data, BadRowsAreSkippedAndListed) {
  const TaskFolder task;
  task.write("rows/a.jsonl", "{\"prompt\": \"1+1=\"}\nno row\n{\"answer\": 2}\n");
  task.write("rows/b.csv", "prompt,answer\n1+2=,3\n1+3=\n");
  const std::string train =
      "train run.toml 'data.train_files=rows/*' data.train_batch_size=2 actor.ppo_mini_batch_size=2";
  const Outcome refused = task.mortise(train + kShort);
  EXPECT_EQ(refused.code, 3);
  EXPECT_THAT(refused.output, HasSubstr("rows/a.jsonl:2:2: "));
  EXPECT_THAT(refused.output, HasSubstr("(3 of the rows cannot be used)"));
  const Outcome outcome = task.mortise(train + " data.on_bad_row=skip" + kShort);
  ASSERT_EQ(outcome.code, 0) << outcome.output;
  EXPECT_THAT(outcome.output, HasSubstr("skipped 3 of 5 rows that cannot be used; the first: rows/a.jsonl:2:"));
  const std::vector<Json> rejects = rows_of(task.path() / "out/rejects.jsonl");
  ASSERT_THAT(rejects, SizeIs(3));
  EXPECT_THAT(rejects[0]["where"].get<std::string>(), HasSubstr("rows/a.jsonl:2:"));
  EXPECT_EQ(rejects[1]["where"], "rows/a.jsonl:3");
  EXPECT_EQ(rejects[2]["where"], "rows/b.csv:3");
  EXPECT_EQ(rejects[2]["what"], "the row needs one cell per column of the header, but has 1 for 2");
}

TEST(Data, WeightsCurriculaAndStreamsTrain) {
  const TaskFolder task;
  std::string easy, hard;
  for (int i = 0; i < 40; ++i) {
    easy += "{\"prompt\": \"1+1=\", \"level\": " + std::to_string(40 - i) + "}\n";
    hard += "{\"prompt\": \"11+11=\", \"level\": " + std::to_string(100 - i) + "}\n";
  }
  task.write("easy.jsonl", easy);
  task.write("hard.jsonl", hard);
  const std::string train =
      "train run.toml 'data.train_files=[\"easy.jsonl\", \"hard.jsonl\"]' "
      "trainer.rollout_data_dir=dump rollout.n=2 trainer.default_local_dir=";
  const auto prompts_of = [&](int step) {
    std::vector<std::string> out;
    for (const Json& row : rows_of(task.path() / ("dump/" + std::to_string(step) + ".jsonl")))
      out.push_back(row["input"].get<std::string>());
    return out;
  };
  const auto count = [](const std::vector<std::string>& prompts, const char* prompt) {
    return std::count(prompts.begin(), prompts.end(), prompt);
  };
  for (const char* streams : {"false", "true"}) {
    const Outcome mixed =
        task.mortise(train + "mixed_" + streams + " 'data.train_weights=[3, 1]' data.streaming=" + streams + kShort);
    ASSERT_EQ(mixed.code, 0) << mixed.output;
    for (int step = 1; step <= 2; ++step) {
      EXPECT_EQ(count(prompts_of(step), "1+1="), 12 * 2) << streams;
      EXPECT_EQ(count(prompts_of(step), "11+11="), 4 * 2) << streams;
    }
  }
  const Outcome sorted = task.mortise(train + "sorted data.curriculum_key=level" + kShort);
  ASSERT_EQ(sorted.code, 0) << sorted.output;
  EXPECT_EQ(count(prompts_of(1), "1+1="), 32) << "levels 1 to 40 come before 61 to 100";
  EXPECT_EQ(count(prompts_of(3), "11+11="), 16) << "row 41 of 80 is in step 3";
  const Outcome wrong = task.mortise(train + "wrong data.train_weights=[1]" + kShort);
  EXPECT_EQ(wrong.code, 2);
  EXPECT_THAT(wrong.output,
              HasSubstr("'data.train_weights' needs one number per entry of data.train_files, but has 1 for 2"));
  const Outcome both = task.mortise(train + "both data.curriculum_key=level data.streaming=true" + kShort);
  EXPECT_EQ(both.code, 2);
  EXPECT_THAT(both.output, HasSubstr("data.streaming does not hold them"));
}

}  // namespace
}  // namespace mortise::test
