// A data column has one type for the whole data set. The reward of a row therefore does not depend on the rows next to
// it: in a run, in `eval`, in `plugin eval`, and after a resume.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <string>
#include <vector>

#include "program.h"

namespace mortise::test {
namespace {

using testing::AllOf;
using testing::Each;
using testing::HasSubstr;

const std::string kCell = " plugins.paths='[\"" + std::string(MORTISE_BINARY_DIR) +
                          "/tests/sdk_packs\"]' reward.0.use=cell '~reward.0.pattern' ";

// Rows with the answers value(i).
std::string rows(int n, const std::function<std::string(int)>& value) {
  std::string text;
  for (int i = 0; i < n; ++i) text += "{\"prompt\": \"1+1=\", \"answer\": " + value(i) + "}\n";
  return text;
}

// The rewards of all rows that a run has dumped, by the answer of their data rows.
std::vector<double> rewards_of(const Path& folder) {
  std::vector<double> out;
  const std::vector<std::string> names = default_env().list_dir(folder).value();
  for (const std::string& name : names) {
    for (const Json& row : rows_of(folder / name))
      out.push_back(row["score"].is_null() ? -1 : row["score"].get<double>());
  }
  return out;
}

// 99.0 among integers, in one row of 64: an integer for every row, in every step.
TEST(Columns, AnIntegerIsOneWhateverTheOtherRowsAre) {
  const TaskFolder task;
  task.write("mixed.jsonl", rows(64, [](int i) { return std::string(i == 17 ? "99.0" : "99"); }));
  const Outcome outcome = task.mortise(
      "train run.toml data.train_files=mixed.jsonl trainer.total_training_steps=4 trainer.rollout_data_dir=dump" +
      kCell);
  ASSERT_EQ(outcome.code, 0) << outcome.output;
  const std::vector<double> rewards = rewards_of(task.path() / "dump");
  EXPECT_EQ(rewards.size(), 4U * 16 * 8);
  EXPECT_THAT(rewards, Each(99.0));
}

TEST(Columns, ANumberAmongTextsIsNamedBeforeTheFirstStep) {
  const TaskFolder task;
  task.write("mixed.jsonl", rows(32, [](int i) { return std::string(i == 20 ? "7" : "\"7\""); }));
  task.write("texts.jsonl", rows(32, [](int) { return std::string("\"7\""); }));
  task.write("numbers.jsonl", rows(32, [](int) { return std::string("7"); }));
  const std::string as_text = kCell + "reward.0.as=text ";
  const std::string fault =
      "mixed.jsonl:21: the data column 'answer' holds text in mixed.jsonl:1 and an integer in mixed.jsonl:21, but "
      "rewards see one type for all rows; write the values in one form, or declare the type: data.columns = { answer = "
      "\"text\" }, or \"json\"";
  for (const char* how : {"", "--dry-run "}) {
    const Outcome refused =
        task.mortise("train run.toml " + std::string(how) + "data.train_files=mixed.jsonl" + as_text);
    EXPECT_EQ(refused.code, 3) << refused.output;
    EXPECT_THAT(refused.output, HasSubstr(fault));
  }
  // Training and validation rows are one data set.
  const Outcome split =
      task.mortise("train run.toml --dry-run data.train_files=texts.jsonl data.val_files=numbers.jsonl" + as_text);
  EXPECT_EQ(split.code, 3) << split.output;
  EXPECT_THAT(split.output, HasSubstr("text in texts.jsonl:1 and an integer in numbers.jsonl:1"));
  EXPECT_EQ(task.mortise("eval run.toml data.train_files=texts.jsonl data.val_files=numbers.jsonl" + as_text).code, 3);
  EXPECT_EQ(task.mortise("eval run.toml data.train_files=none.jsonl data.val_files=numbers.jsonl" + as_text).code, 0);
  EXPECT_FALSE(default_env().exists(task.path() / "out"));

  const Outcome declared = task.mortise(
      "train run.toml data.train_files=mixed.jsonl data.columns.answer=text trainer.total_training_steps=2 "
      "trainer.rollout_data_dir=dump" +
      as_text);
  ASSERT_EQ(declared.code, 0) << declared.output;
  EXPECT_THAT(rewards_of(task.path() / "dump"), Each(1.0));
}

// A row that the run leaves out has no say in the type of a column.
TEST(Columns, AnOverlongRowOfAnotherTypeIsNotSeen) {
  const TaskFolder task;
  const std::string overlong = "{\"prompt\": \"" + std::string(40, '1') + "+1=\", \"answer\": [\"a list\"]}\n";
  task.write("mixed.jsonl", rows(16, [](int i) { return std::to_string(i); }) + overlong +
                                rows(16, [](int i) { return std::to_string(i); }));
  task.write("val.jsonl", rows(4, [](int i) { return std::to_string(i); }));
  const std::string filter = " data.filter_overlong_prompts=true";
  const std::string train = "train run.toml data.train_files=mixed.jsonl trainer.total_training_steps=2" + kCell;
  for (const std::string how : {" --dry-run", " trainer.rollout_data_dir=dump"}) {
    const Outcome outcome = task.mortise(train + filter + how);
    EXPECT_EQ(outcome.code, 0) << outcome.output;
  }
  EXPECT_EQ(rewards_of(task.path() / "dump").size(), 2U * 16 * 8);
  // `eval` looks at the training rows for the types alone.
  const Outcome eval =
      task.mortise("eval run.toml data.train_files=mixed.jsonl data.val_files=val.jsonl" + kCell + filter);
  EXPECT_EQ(eval.code, 0) << eval.output;
  const Outcome seen = task.mortise(train + " --dry-run data.max_prompt_length=60");
  EXPECT_EQ(seen.code, 3) << seen.output;
  EXPECT_THAT(seen.output, HasSubstr("a boolean, list or object in mixed.jsonl:17"));
}

TEST(Columns, ADeclarationIsCheckedWithItsPlace) {
  const TaskFolder task;
  const Outcome wrong = task.mortise("train run.toml --dry-run data.columns.answer=float");
  EXPECT_EQ(wrong.code, 2) << wrong.output;
  EXPECT_THAT(wrong.output,
              HasSubstr("'data.columns.answer' must be one of text, integer, number, json, but is \"float\""));
  const Outcome missing = task.mortise("train run.toml --dry-run data.columns.anwser=text");
  EXPECT_EQ(missing.code, 2) << missing.output;
  EXPECT_THAT(missing.output,
              HasSubstr("declares the column 'anwser', and no data row has it; did you mean 'answer'?"));
}

// Nulls, absent values, booleans, lists and large integers in a file of `plugin eval`, which decides as a run does.
TEST(Columns, PluginEvalReadsEveryKindOfValue) {
  const TempDir dir;
  const auto eval = [&](const std::vector<std::string>& values, const std::string& options) {
    std::string text;
    for (const std::string& value : values)
      text += "{\"completion\": \"x\"" + (value.empty() ? "" : ", \"answer\": " + value) + "}\n";
    dir.write("rows.jsonl", text);
    const Outcome outcome =
        run(program() + " plugin eval reward cell --plugin-path " + std::string(MORTISE_BINARY_DIR) +
                "/tests/sdk_packs --inputs rows.jsonl --outputs out.jsonl " + options,
            dir.path());
    if (outcome.code != 0) return outcome.output;
    std::string out;
    for (const Json& row : rows_of(dir.path() / "out.jsonl")) out += (out.empty() ? "" : " ") + row["reward"].dump();
    return out;
  };
  EXPECT_EQ(eval({"5", "null", "", "99.0", "0.5"}, "--set as=integer"), "5.0 -1000.0 -1000.0 99.0 -1000.0");
  EXPECT_EQ(eval({"5", "null", "", "99.0", "0.5"}, "--set as=number"), "5.0 -1000.0 -1000.0 99.0 0.5");
  EXPECT_EQ(eval({"5", "null", "", "99.0", "0.5"}, "--set as=text"), "1.0 null null 2.0 3.0");
  EXPECT_EQ(eval({"123456", "100000"}, "--set as=text"), "6.0 6.0");
  EXPECT_EQ(eval({"9007199254740993", "2"}, "--set as=integer"), "9.007199254740992e+15 2.0")
      << "as the score's double";
  EXPECT_EQ(eval({"9007199254740993", "2"}, "--set as=number"), "-1000.0 2.0") << "no double holds it";
  EXPECT_EQ(eval({"9007199254740993", "2"}, "--set as=text"), "16.0 1.0");
  EXPECT_THAT(eval({"2", "9007199254740993", "0.5"}, ""), AllOf(HasSubstr("rows.jsonl:2"), HasSubstr("rows.jsonl:3")));
  EXPECT_EQ(eval({"true", "[1, 2]", "{}"}, "--set as=json"), "4.0 5.0 2.0");
  EXPECT_EQ(eval({"true", "[1, 2]"}, "--set as=text"), "null null");
  EXPECT_THAT(eval({"\"a\"", "[1, 2]"}, ""),
              HasSubstr("text in rows.jsonl:1 and a boolean, list or object in rows.jsonl:2"));
  EXPECT_EQ(eval({"\"a\"", "[1, 2]"}, "--set as=text --column answer=text"), "1.0 5.0");
  EXPECT_EQ(eval({"\"a\"", "[1, 2]"}, "--set as=json --column answer=json"), "3.0 5.0");
  EXPECT_THAT(eval({"\"a\""}, "--column answer=int"), HasSubstr("--column takes NAME=text, integer, number or json"));
}

// A validation file that turns integers into floats changes the training rows for a reward in C or Python.
TEST(Columns, AResumeAsksWhenATypeChanges) {
  const TaskFolder task;
  task.write("train.jsonl", rows(32, [](int i) { return std::to_string(i); }));
  task.write("val.jsonl", rows(4, [](int i) { return std::to_string(i); }));
  const auto train = [&](int steps, const std::string& more) {
    return task.mortise(
        "train run.toml data.train_files=train.jsonl data.val_files=val.jsonl trainer.total_training_steps=" +
        std::to_string(steps) + kCell + more);
  };
  ASSERT_EQ(train(1, "").code, 0);
  ASSERT_EQ(train(2, "").code, 0);
  task.write("val.jsonl", rows(4, [](int i) { return std::to_string(i) + ".5"; }));
  const Outcome refused = train(3, "");
  EXPECT_EQ(refused.code, 3) << refused.output;
  EXPECT_THAT(refused.output, HasSubstr("the types of the data columns, now answer=number"));
  EXPECT_EQ(train(3, "--allow-change").code, 0);
  EXPECT_EQ(train(4, "").code, 0);
}

TEST(Columns, APythonRewardsMissingColumnIsNamedBeforeTheFirstStep) {
  const TaskFolder task;
  task.write("my.py", "def reward(prompts, completions, anwser, scale, **kwargs):\n    return [0.0] * len(prompts)\n");
  const std::string python =
      " reward.0.use=python '~reward.0.pattern' reward.0.path=my.py reward.0.kwargs='\"{\\\"scale\\\": 2}\"'";
  for (const char* how : {"", "--dry-run "}) {
    const Outcome outcome = task.mortise("train run.toml " + std::string(how) + python);
    EXPECT_EQ(outcome.code, 3) << outcome.output;
    EXPECT_THAT(outcome.output,
                HasSubstr("'reward' in my.py needs 'anwser', and no data row has such a column; did you "
                          "mean 'answer'?"));
  }
  EXPECT_FALSE(default_env().exists(task.path() / "out"));
}

// No mean of nothing: `reward` is left out where no reward applies.
TEST(Columns, ARewardThatAppliesToNoRowIsNotZero) {
  const TaskFolder task;
  const Outcome outcome = task.mortise("train run.toml trainer.total_training_steps=1" + kCell + "reward.0.as=json");
  ASSERT_EQ(outcome.code, 0) << outcome.output;
  const std::vector<Json> steps = rows_of(task.path() / "out/metrics.jsonl");
  ASSERT_EQ(steps.size(), 1U);
  for (const char* name : {"reward", "reward_std", "critic/score/mean", "rewards/cell/mean"})
    EXPECT_FALSE(steps[0].contains(name)) << name;
  EXPECT_EQ(steps[0]["frac_reward_nan"], 1.0);
}

}  // namespace
}  // namespace mortise::test
