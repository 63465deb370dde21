// Runs whose rewards compute elsewhere, in the user's Python or behind a web service, from the first step to the
// checkpoint.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>

#include "program.h"
#include "python_service.h"
#include "support/bubblewrap.h"

namespace mortise::test {
namespace {

using testing::HasSubstr;
using testing::Not;

bool has_python() {
  return std::system("python3 -c 'import sys; sys.exit(sys.version_info < (3, 8))' >/dev/null 2>&1") == 0;
}

double mean_score(const std::vector<Json>& rows, size_t first, size_t last) {
  double sum = 0.0;
  for (size_t i = first; i < last; ++i) sum += rows[i]["critic/score/mean"].get<double>();
  return sum / static_cast<double>(last - first);
}

// run.toml with another [[reward]] table.
void use_reward(const TaskFolder& task, const std::string& table) {
  std::string text = default_env().read_file(task.path() / "run.toml").value();
  const std::string old = "use = \"regex\"\npattern = \"^7\"\n";
  text.replace(text.find(old), old.size(), table);
  task.write("run.toml", text);
}

// As people write it for TRL: texts, a column of the data, the trainer's state, extra columns.
constexpr const char* kTrlReward = R"(
def reward(prompts, completions, completion_ids, answer, trainer_state, log_extra, log_metric, **kwargs):
    assert len(prompts) == len(completions) == len(completion_ids) == len(answer)
    assert all(p.endswith("=") for p in prompts)
    assert all(isinstance(a, str) for a in answer)
    assert all(ids and all(isinstance(i, int) for i in ids) for ids in completion_ids)
    assert trainer_state.max_steps == 30
    log_extra("length", [len(c) for c in completions])
    log_metric("seen/step", trainer_state.global_step)
    return [1.0 if c.startswith("7") else None if c.startswith("8") else 0.0 for c in completions]
)";

// In its default workers, with the rights that it declares and no others.
TEST(Rewards, ProgramsRunInSandboxesOfWorkers) {
  const TempDir dir;
  if (const std::string reason = no_bubblewrap("no program was run in a sandbox"); !reason.empty())
    GTEST_SKIP() << reason;
  std::string rows;
  for (const char* text : {"print(int(input()) + 1)", "print(input())", "import os; os.fork(); print(2)",
                           "import socket; socket.socket(); print(2)"})
    rows += Json{{"prompt", ""}, {"completion", text}, {"test_cases", {{"inputs", {"1"}}, {"outputs", {"2"}}}}}.dump() +
            "\n";
  dir.write("rows.jsonl", rows);
  const Outcome outcome = run(program() +
                                  " plugin eval reward code --isolation process --set python=/usr/bin/python3 "
                                  "--inputs rows.jsonl --outputs scores.jsonl",
                              dir.path());
  ASSERT_EQ(outcome.code, 0) << outcome.output;
  std::vector<double> scores;
  for (const Json& row : rows_of(dir.path() / "scores.jsonl")) scores.push_back(row["reward"].get<double>());
  EXPECT_EQ(scores, (std::vector<double>{1, 0, 0, 0}));
}

TEST(Rewards, APythonFunctionOfTrlTrainsAModel) {
  if (!has_python()) GTEST_SKIP() << "no python3 of 3.8 or newer: the reward `python` was not tested in a run";
  const TaskFolder task;
  task.write("my_reward.py", kTrlReward);
  use_reward(task, "use = \"python\"\npath = \"my_reward.py\"\n");
  const Outcome outcome = task.mortise("train run.toml trainer.total_training_steps=30");
  ASSERT_EQ(outcome.code, 0) << outcome.output;
  const std::vector<Json> rows = rows_of(task.path() / "out/metrics.jsonl");
  ASSERT_EQ(rows.size(), 30U);
  EXPECT_GT(mean_score(rows, 25, 30), mean_score(rows, 0, 5) + 0.2) << outcome.output;
  EXPECT_EQ(rows[4]["seen/step"].get<double>(), 4.0);
  EXPECT_GT(rows[0]["reward_extra/length"].get<double>(), 0.0) << rows[0].dump();
  EXPECT_THAT(outcome.output, HasSubstr("may do what it declares to need: start programs"));
}

// As people write it for verl: row by row, a dict with the score and more.
constexpr const char* kVerlReward = R"(
def compute_score(data_source, solution_str, ground_truth, extra_info=None):
    assert data_source == "addition" and isinstance(ground_truth, str)
    if solution_str.startswith("3"):
        raise ValueError("cannot stand a three")
    return {"score": float(solution_str.startswith("7")), "acc": solution_str == ground_truth, "pred": solution_str}
)";

TEST(Rewards, APythonFunctionOfVerlTrainsAModelAndMayFailOnRows) {
  if (!has_python()) GTEST_SKIP() << "no python3 of 3.8 or newer: the reward `python` was not tested in a run";
  const TaskFolder task;
  task.write("score.py", kVerlReward);
  use_reward(task, "use = \"python\"\npath = \"score.py\"\n");
  const Outcome outcome = task.mortise(
      "train run.toml trainer.total_training_steps=3 plugins.max_failed_fraction=0.9 reward.0.row_timeout=5s");
  ASSERT_EQ(outcome.code, 0) << outcome.output;
  EXPECT_THAT(outcome.output,
              HasSubstr("'row_timeout' has no effect: the reward scores the rows of a step in one call"));
  const std::vector<Json> rows = rows_of(task.path() / "out/metrics.jsonl");
  ASSERT_EQ(rows.size(), 3U);
  EXPECT_TRUE(rows[0].contains("reward_extra/acc")) << rows[0].dump();
  double failed = 0;
  for (const Json& row : rows) failed += row["rewards/python/failed"].get<double>();
  EXPECT_GT(failed, 0);
  EXPECT_THAT(outcome.output, HasSubstr("ValueError: cannot stand a three (" + (task.path() / "score.py").string() +
                                        ":5, in compute_score)"));
  const Outcome strict = task.mortise(
      "train run.toml trainer.total_training_steps=3 plugins.max_failed_fraction=0 "
      "trainer.default_local_dir=strict");
  EXPECT_EQ(strict.code, 9) << strict.output;
}

// A module that a reward file imports counts as part of the file.
TEST(Rewards, AResumeSeesAnEditOfWhatAPythonFunctionImports) {
  if (!has_python()) GTEST_SKIP() << "no python3 of 3.8 or newer: the imports of the reward `python` were not tested";
  const TaskFolder task;
  task.write(
      "rewards/score.py",
      "from parts import helper\n\ndef compute_score(data_source, solution_str, ground_truth, extra_info=None):\n"
      "    import late\n    return helper.score(solution_str) + late.nothing\n");
  task.write("rewards/parts/__init__.py", "");
  task.write("rewards/parts/helper.py", "def score(text):\n    return float(text.startswith('7'))\n");
  task.write("rewards/late.py", "nothing = 0.0\n");
  task.write("rewards/unrelated.py", "");
  use_reward(task, "use = \"python\"\npath = \"rewards/score.py\"\n");
  const auto train = [&](const std::string& more) {
    return task.mortise("train run.toml trainer.total_training_steps=1 trainer.test_freq=-1 " + more);
  };
  ASSERT_EQ(train("").code, 0);
  task.write("rewards/unrelated.py", "1\n");
  EXPECT_THAT(train("").output, HasSubstr("this run is finished"));
  for (const std::string edited : {"late", "parts/helper"}) {
    const Path file = task.path() / "rewards" / (edited + ".py");
    const std::string before = default_env().read_file(file).value();
    task.write("rewards/" + edited + ".py", before + "# edited\n");
    const Outcome refused = train("");
    EXPECT_EQ(refused.code, 3) << refused.output;
    EXPECT_THAT(refused.output,
                HasSubstr("inputs of the run have changed since the checkpoint:\n  reward.0.path: modules that "
                          "rewards/score.py imports from its folder (late.py, parts/__init__.py, parts/helper.py)"));
    EXPECT_EQ(train("--allow-change").code, 0);
    task.write("rewards/" + edited + ".py", before);
  }
  EXPECT_EQ(train("").code, 0);
}

TEST(Rewards, AColumnThatNoRowHasIsNamedBeforeTheFirstStep) {
  const TaskFolder task;
  use_reward(task, "use = \"exact_match\"\n");
  std::string rows;
  for (int i = 0; i < 16; ++i) rows += "{\"prompt\": \"1+1=\", \"asnwer\": \"2\"}\n";
  task.write("typo.jsonl", rows);
  const Outcome outcome = task.mortise("train run.toml trainer.total_training_steps=1 data.train_files=typo.jsonl");
  EXPECT_EQ(outcome.code, 3) << outcome.output;
  EXPECT_THAT(outcome.output, HasSubstr("typo.jsonl:1: the row has 'asnwer' and no 'answer' (as have 15 more rows"));
  EXPECT_THAT(outcome.output,
              HasSubstr("the reward 'exact_match' reads the data column 'answer' (column), but no row of "
                        "data.train_files has a value there; did you mean 'asnwer'?"));
  EXPECT_FALSE(default_env().exists(task.path() / "out"));
}

TEST(Rewards, AWebServiceTrainsAModelFromAWorker) {
  if (!has_python()) GTEST_SKIP() << "no python3 for the service: the reward `http` was not tested in a run";
  ::setenv("no_proxy", "127.0.0.1", 1);
  const TaskFolder task;
  const ScoreService service(task.path());
  ASSERT_TRUE(service.started());
  use_reward(task, "use = \"http\"\nurl = \"" + service.url("/score") + "\"\nbatch_size = 16\n");
  const Outcome outcome = task.mortise("train run.toml trainer.total_training_steps=3");
  ASSERT_EQ(outcome.code, 0) << outcome.output;
  EXPECT_THAT(outcome.output, HasSubstr("may do what it declares to need: use the network"));
  EXPECT_THAT(outcome.output, HasSubstr("runs in 1 worker"));
  const std::vector<Json> rows = rows_of(task.path() / "out/metrics.jsonl");
  ASSERT_EQ(rows.size(), 3U);
  // The service gives each row the length of its completion, of three characters at most.
  EXPECT_GT(rows[0]["critic/score/mean"].get<double>(), 0.5);
  EXPECT_LE(rows[0]["critic/score/max"].get<double>(), 3.0);

  const Outcome down = task.mortise(
      "train run.toml trainer.total_training_steps=1 trainer.default_local_dir=down "
      "reward.0.retries=1 reward.0.backoff=0.01 reward.0.url=" +
      service.url("/down"));
  EXPECT_EQ(down.code, 9) << down.output;
  EXPECT_THAT(down.output, HasSubstr("503"));
}

// A run, `plugin eval` and what the run wrote down agree on the scores of a reward model.
TEST(Rewards, ARewardModelScoresInTheEnginesProcess) {
  const TaskFolder task;
  const std::string folder = std::string(MORTISE_SOURCE_DIR) + "/tests/golden/reward_model/model";
  use_reward(task, "use = \"reward_model\"\nmodel = \"" + folder + "\"\ntransform = \"sigmoid\"\n" +
                       "[[reward]]\nuse = \"regex\"\npattern = \"^7\"\nweight = 0.5\n");
  const std::string train = "train run.toml trainer.total_training_steps=2 trainer.rollout_data_dir=rollouts ";
  const Outcome outcome = task.mortise(train);
  ASSERT_EQ(outcome.code, 0) << outcome.output;
  EXPECT_THAT(outcome.output, HasSubstr("reward reward_model@mortise.reward_model"));
  EXPECT_THAT(outcome.output, HasSubstr("runs in the trainer's own process (it needs a service of the engine"));
  EXPECT_THAT(outcome.output, HasSubstr("worker"));  // the other reward has one
  const std::vector<Json> rows = rows_of(task.path() / "out/metrics.jsonl");
  ASSERT_EQ(rows.size(), 2U);
  EXPECT_EQ(rows[0]["rewards/reward_model/failed"].get<double>(), 0.0) << rows[0].dump();
  EXPECT_GT(rows[0]["rewards/reward_model/mean"].get<double>(), 0.0) << rows[0].dump();
  EXPECT_LT(rows[0]["rewards/reward_model/mean"].get<double>(), 1.0) << rows[0].dump();
  EXPECT_GT(rows[0]["reward_extra/reward_model_tokens"].get<double>(), 5.0) << rows[0].dump();
  EXPECT_TRUE(rows[0].contains("reward_extra/reward_model_logit")) << rows[0].dump();
  // Scores the completions that the run wrote once more.
  const std::vector<Json> sampled = rows_of(task.path() / "rollouts/1.jsonl");
  ASSERT_EQ(sampled.size(), 128U);
  std::string again;
  for (const Json& row : sampled)
    again += dump_json(Json{{"prompt", row["input"]}, {"completion", row["output"]}}) + "\n";
  task.write("again.jsonl", again);
  const Outcome eval = task.mortise("plugin eval reward reward_model --inputs again.jsonl --outputs scores.jsonl " +
                                    ("--set transform=sigmoid --set batch_size=50 --set model=" + folder));
  ASSERT_EQ(eval.code, 0) << eval.output;
  const std::vector<Json> scored = rows_of(task.path() / "scores.jsonl");
  ASSERT_EQ(scored.size(), sampled.size());
  double least = 1.0, most = 0.0;
  for (size_t i = 0; i < scored.size(); ++i) {
    const double score = scored[i]["reward"].get<double>();
    EXPECT_NEAR(score, sampled[i]["rewards"]["reward_model"].get<double>(), 1e-5) << sampled[i].dump();
    least = std::min(least, score);
    most = std::max(most, score);
  }
  EXPECT_GT(most - least, 0.01) << "completions differ, and so should their scores";
}

TEST(Rewards, ARewardModelThatCannotBeUsedIsToldBeforeTheFirstStep) {
  const TaskFolder task;
  const std::string folder = std::string(MORTISE_SOURCE_DIR) + "/tests/golden/reward_model/model";
  use_reward(task, "use = \"reward_model\"\nmodel = \"" + folder + "\"\n");
  const Outcome missing = task.mortise("train run.toml reward.0.model=nowhere");
  EXPECT_EQ(missing.code, 3) << missing.output;
  EXPECT_THAT(missing.output, HasSubstr("nowhere: there is no model folder (no config.json)"));
  EXPECT_THAT(missing.output, Not(HasSubstr("step 1")));
  const Outcome policy = task.mortise("train run.toml reward.0.model=model");
  EXPECT_EQ(policy.code, 3) << policy.output;
  EXPECT_THAT(policy.output, HasSubstr("this is a language model"));
  const Outcome confined = task.mortise("train run.toml plugins.isolation=process");
  EXPECT_EQ(confined.code, 4) << confined.output;
  EXPECT_THAT(confined.output, HasSubstr("set plugins.isolation = \"auto\""));
  const Outcome cut = task.mortise("train run.toml reward.0.max_length=3");
  EXPECT_EQ(cut.code, 9) << cut.output;
  EXPECT_THAT(cut.output, HasSubstr("more than the reward model's max_length = 3"));
}

// `mortise plugin check` on the packs whose rewards compute elsewhere.
TEST(Rewards, ThePacksOfPythonAndHttpKeepTheRules) {
  if (!has_python()) GTEST_SKIP() << "no python3: the packs of `python` and `http` were not checked";
  ::setenv("no_proxy", "127.0.0.1", 1);
  const TempDir dir;
  const ScoreService service(dir.path());
  ASSERT_TRUE(service.started());
  dir.write("score.py", "def reward(completions, **kwargs):\n    return [float(len(c)) for c in completions]\n");
  const std::string packs = std::string(MORTISE_BINARY_DIR) + "/lib/mortise/packs/mortise.reward_";
  const auto check = [&](const std::string& pack, const std::string& params, const std::string& options) {
    const Outcome checked = run(
        program() + " plugin check " + packs + pack + ".so --verbose --params '" + params + "' " + options, dir.path());
    EXPECT_EQ(checked.code, 0) << checked.output;
    return checked.output;
  };
  // The report says how many instances there was time for. Each one of `python` starts an interpreter, so that case takes
  // the time that it is given, and the other cases get more.
  const std::string limited = "hygiene.create_growth (R18): ", wanted = "fit into the time, of 10,000 wanted";
  const std::string score = "path=" + (dir / "score.py").string();
  check("python", score,
        "--timeout 120s --only '[!h]*' --only 'hygiene.[!c]*' --only 'hygiene.ch*' --only 'hygiene.ca*'");
  EXPECT_THAT(check("python", score, "--timeout 15s --only hygiene.create_growth"),
              testing::AllOf(HasSubstr(limited), HasSubstr(wanted)));
  EXPECT_THAT(check("http", "backoff=0.01,url=" + service.url("/score"), "--timeout 120s"), Not(HasSubstr(wanted)));
  if (std::getenv("MORTISE_LONG") == nullptr) return;
  const Outcome all = run(program() + " plugin check " + packs + "python.so --only hygiene.create_growth --verbose " +
                              "--timeout 3600s --params path=" + (dir / "score.py").string(),
                          dir.path());
  EXPECT_EQ(all.code, 0) << all.output;
  EXPECT_THAT(all.output, Not(HasSubstr("wanted")));
}

}  // namespace
}  // namespace mortise::test
