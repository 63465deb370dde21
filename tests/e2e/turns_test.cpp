// Rows with several turns, in whole runs: a text game in Python that every turn meets, and a tool that the model learns
// to call. The log-probs of training equal those of sampling over all turns; runs have the same bits for any number of
// workers and rows at a time, and after a resume; a crash or a hang of the user's code costs its rows and not the run.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <set>

#include "run_bits.h"

namespace mortise::test {
namespace {

using testing::HasSubstr;
using testing::Not;

// A turn ends with a digit below 5. The game answers three times, and likes even answers.
constexpr const char* kGame = R"(
import os, time

class Game:
    def __init__(self, turns=3):
        self.turns = turns

    def reset(self, prompt, answer, seed):
        assert prompt[0]["role"] == "user" and isinstance(seed, int)
        self.answer, self.turn = answer, 0
        if self.answer == os.environ.get("GAME_LOST"):
            raise ValueError("the board is lost")
        return "%d" % (seed % 2)

    def hangs(self):  # two rows wait for their time limits
        for name in ("first_hang", "second_hang"):
            try:
                os.close(os.open(name, os.O_CREAT | os.O_EXCL))
                return True
            except FileExistsError:
                pass
        return False

    def step(self, text):
        if self.answer == os.environ.get("GAME_CRASH"):
            os._exit(3)
        if self.answer == os.environ.get("GAME_HANG") and self.hangs():
            time.sleep(3600)
        if self.answer == os.environ.get("GAME_RAISE"):
            raise ValueError("no such move")
        self.turn += 1
        return "*" * self.turn, 1.0 if text[-1:] in ("0", "2", "4") else 0.0, self.turn >= self.turns
)";

constexpr const char* kToml = R"(
[model]
path = "model"
[data]
train_files = ["few.jsonl"]
train_batch_size = 8
max_prompt_length = 16
max_response_length = 40
[actor]
ppo_mini_batch_size = 4
[actor.optim]
lr = 2e-3
[rollout]
n = 4
stop = ["0", "1", "2", "3", "4"]
[rollout.multi_turn]
enable = true
params.class = "game.py:Game"
timeout = "20s"
[trainer]
total_training_steps = 2
default_local_dir = "out"
rollout_data_dir = "out/dump"
num_threads = 1
logger = []
save_freq = 1
max_actor_ckpt_to_keep = 2
[plugins]
env = ["GAME_CRASH", "GAME_HANG", "GAME_RAISE", "GAME_LOST"]
)";

class Turns : public ::testing::Test {
 protected:
  Turns() {
    const Outcome made = copy_task("make_tool_task", "--seed 3", dir_.path());
    EXPECT_EQ(made.code, 0) << made.output;
    dir_.write("game.py", kGame);
    dir_.write("run.toml", kToml);
    std::string rows;
    for (int i = 0; i < 12; ++i) {
      const Json message = {{"role", "user"}, {"content", std::to_string(10 + i) + "*7"}};
      rows += Json{{"prompt", Json::array({message})}, {"answer", std::to_string(i)}}.dump() + "\n";
    }
    dir_.write("few.jsonl", rows);
  }
  [[nodiscard]] Outcome mortise(const std::string& args, const std::string& variables = "") const {
    return run(variables + " " + program() + " " + args, dir_.path());
  }
  [[nodiscard]] Path out(const std::string& name = "out") const { return dir_.path() / name; }
  // The dumps of both steps as one file.
  void join_dumps() const {
    std::string all;
    for (const int step : {1, 2}) {
      for (const Json& row : dumped(step)) all += dump_json(row) + "\n";
    }
    dir_.write("all.jsonl", all);
  }
  [[nodiscard]] std::vector<Json> dumped(int step) const {
    return rows_of(out() / "dump" / (std::to_string(step) + ".jsonl"));
  }
  TempDir dir_;
};

// The sampled and the other tokens of a row, a word for each run of them: "1 0 1".
std::vector<std::pair<int, int64_t>> runs_of(const Json& mask) {
  std::vector<std::pair<int, int64_t>> runs;
  for (const Json& one : mask) {
    if (runs.empty() || runs.back().first != one.get<int>()) runs.emplace_back(one.get<int>(), 0);
    ++runs.back().second;
  }
  return runs;
}

const std::string kReplay =
    "train run.toml trainer.default_local_dir=again trainer.rollout_data_dir=again/dump rollout.name=replay "
    "rollout.replay.path=all.jsonl ";

// The tools or the game answer again, and the recorded turns are those of the run that recorded them.
TEST_F(Turns, AReplayOfADumpIsTheSameRun) {
  ASSERT_EQ(mortise("train run.toml").code, 0);
  join_dumps();
  const Outcome again = mortise(kReplay);
  ASSERT_EQ(again.code, 0) << again.output;
  for (const char* file : {"dump/1.jsonl", "dump/2.jsonl", "global_step_2/huggingface/model.safetensors"})
    EXPECT_EQ(hash_of(out() / file), hash_of(out("again") / file)) << file;
  for (const std::string steps : {"1", "2"}) {  // nothing is asked for after the last step
    const Outcome other =
        mortise(kReplay + "trainer.default_local_dir=other" + steps + " trainer.total_training_steps=" + steps +
                " rollout.multi_turn.max_assistant_turns=1");
    EXPECT_NE(other.code, 0) << steps;
    EXPECT_THAT(other.output, HasSubstr("the run asked for fewer turns of this row than it has")) << steps;
  }
}

// The last rows of step 1 fail before their first turn, so a replay does not ask for them.
TEST_F(Turns, AReplayOfFailedRowsIsTheSameRun) {
  ASSERT_EQ(mortise("train run.toml trainer.total_training_steps=1 trainer.default_local_dir=first "
                    "trainer.rollout_data_dir=first/dump")
                .code,
            0);
  const auto last = rows_of(out("first") / "dump/1.jsonl").back()["input"].get<std::string>();
  // The input "?17*7=" belongs to a game whose answer is 7.
  const std::string lost = "GAME_LOST=" + std::to_string(std::stoi(last.substr(1)) - 10);
  const std::string may_fail = " plugins.max_failed_fraction=0.5";
  const Outcome done = mortise("train run.toml" + may_fail, lost);
  ASSERT_EQ(done.code, 0) << done.output;
  ASSERT_TRUE(dumped(1).back()["token_ids"].empty());
  join_dumps();
  const Outcome again = mortise(kReplay + may_fail, lost);
  ASSERT_EQ(again.code, 0) << again.output;
  for (const char* file : {"dump/1.jsonl", "dump/2.jsonl", "global_step_2/huggingface/model.safetensors"})
    EXPECT_EQ(hash_of(out() / file), hash_of(out("again") / file)) << file;
}

TEST_F(Turns, ARowHoldsItsTurnsAndTheAnswersToThem) {
  const Outcome done = mortise("train run.toml");
  ASSERT_EQ(done.code, 0) << done.output;
  const std::vector<Json> rows = dumped(1);
  ASSERT_EQ(rows.size(), 32U);
  int64_t num_whole = 0;
  for (const Json& row : rows) {
    const auto runs = runs_of(row["response_mask"]);
    ASSERT_FALSE(runs.empty());
    EXPECT_EQ(row["response_mask"].size(), row["token_ids"].size());
    EXPECT_EQ(runs.front().first, 1);
    EXPECT_EQ(runs.back().first, 1) << "an answer that nothing follows is not part of the row";
    // ? * =, with another * for each turn, and <|end|> in front if a digit ended the turn.
    for (size_t i = 1; i < runs.size(); i += 2)
      EXPECT_THAT(runs[i].second - static_cast<int64_t>(i / 2 + 1), testing::AnyOf(2, 3)) << row;
    EXPECT_EQ(row["turns"].front()["role"], "user") << "what reset() said";
    num_whole += row["turns_end"] == "done" ? 1 : 0;
    if (row["turns_end"] == "done") {
      EXPECT_EQ(runs.size(), 5U);
    }
    // The prompt got the first observation: ?10*7 and 0 or 1, =, the same in a group.
    EXPECT_EQ(row["prompt_token_ids"],
              rows[static_cast<size_t>(row["prompt_index"].get<int64_t>() * 4)]["prompt_token_ids"]);
  }
  EXPECT_GT(num_whole, 5) << "most rows have three turns";
  for (const Json& step : rows_of(out() / "metrics.jsonl")) {
    EXPECT_LT(step["training/rollout_probs_diff_max"].get<double>(), 1e-4) << "log-probs of all turns";
    EXPECT_GT(step["num_turns/mean"].get<double>(), 2.0);
    EXPECT_EQ(step["environment/failed_ratio"], 0.0);
    EXPECT_TRUE(step.contains("rewards/environment/mean"));
  }
}

class TurnsOnRanks : public Turns {
 protected:
  // `num_ranks` is 1 for the run in out(), to whose rows the others are compared.
  void train(int num_ranks, const std::string& name, const std::string& settings) {
    const std::string launcher =
        num_ranks == 1 ? "" : "launch --log-dir logs --nproc " + std::to_string(num_ranks) + " ";
    const Outcome done = mortise(launcher + "train run.toml model.dtype=float64 trainer.default_local_dir=" + name +
                                 " trainer.rollout_data_dir=" + name + "/dump trainer.save_freq=-1 " + settings);
    EXPECT_EQ(done.code, 0) << done.output;
  }
  void expect_rows_of_one_process(const std::string& name) {
    SCOPED_TRACE(name);
    for (const std::string step : {"1", "2"}) {
      const std::vector<Json> got = rows_of(out(name) / ("dump/" + step + ".jsonl")), want = dumped(std::stoi(step));
      ASSERT_EQ(got.size(), want.size());
      for (size_t i = 0; i < got.size(); ++i) {
        for (const char* key : {"token_ids", "response_mask", "turns", "turns_end", "score"})
          EXPECT_EQ(got[i][key], want[i][key]) << key << " of row " << i;
      }
    }
    expect_near_rows(out(name), out(), "metrics.jsonl", 1e-9);
  }
};

// The first rank of a group plays, and all ranks of it sample the turns that follow.
TEST_F(TurnsOnRanks, RanksThatSampleTogetherHaveTheRowsOfOneProcess) {
  const std::string validates = "trainer.test_freq=1 data.val_files=few.jsonl ";
  train(1, "out", validates);
  const std::string groups = validates + "rollout.tensor_model_parallel_size=2 ";
  train(2, "one_group", groups);
  train(4, "two_groups", groups + "rollout.max_num_seqs=8");
  for (const std::string name : {"one_group", "two_groups"}) expect_rows_of_one_process(name);
}

// Each rank plays its rows of the next step while it learns.
TEST_F(TurnsOnRanks, RanksThatSampleAheadHaveTheRowsOfOneProcess) {
  const std::string ahead = "trainer.mode=one_step_off algorithm.rollout_correction.rollout_is=token ";
  train(1, "out", ahead);
  train(3, "ranks", ahead);
  expect_rows_of_one_process("ranks");
}

TEST_F(Turns, RewardsOfTurnsAreAtTheirTokens) {
  ASSERT_EQ(mortise("train run.toml trainer.total_training_steps=1 rollout.multi_turn.reward_weight=2").code, 0);
  for (const Json& row : dumped(1)) {
    double expected = 0.0;
    for (const Json& message : row["turns"]) {
      if (message["role"] != "assistant") continue;
      const auto text = message["content"].get<std::string>();
      expected += !text.empty() && std::string("024").find(text.back()) != std::string::npos ? 2.0 : 0.0;
    }
    EXPECT_EQ(row["score"], expected) << row;
  }
}

TEST_F(Turns, RunsHaveTheSameBitsForAnyWorkersAndRowsAtATimeAndAfterAResume) {
  ASSERT_EQ(mortise("train run.toml plugins.num_workers=1").code, 0);
  const auto expected = bits_of_run(out(), 2);
  ASSERT_EQ(mortise("train run.toml trainer.default_local_dir=b trainer.rollout_data_dir=b/dump plugins.num_workers=3 "
                    "rollout.max_num_seqs=3")
                .code,
            0);
  expect_same_bits(bits_of_run(out("b"), 2), expected, "three workers and rows");
  ASSERT_EQ(mortise("train run.toml trainer.default_local_dir=c trainer.rollout_data_dir=c/dump "
                    "plugins.isolation=none")
                .code,
            0);
  expect_same_bits(bits_of_run(out("c"), 2), expected, "in the trainer's own process");
  cut_back(out(), out("d"), 1, 2);
  const Outcome resumed = mortise("train run.toml trainer.default_local_dir=d trainer.rollout_data_dir=d/dump");
  ASSERT_EQ(resumed.code, 0) << resumed.output;
  expect_same_bits(bits_of_run(out("d"), 2), expected, "resumed");
}

TEST_F(Turns, ACrashAHangAndAnErrorCostTheirRowsAlone) {
  const Outcome done = mortise(
      "train run.toml trainer.total_training_steps=1 data.train_batch_size=12 actor.ppo_mini_batch_size=12 "
      "plugins.max_failed_fraction=0.9 rollout.multi_turn.timeout=20s plugins.num_workers=2",
      "GAME_CRASH=2 GAME_HANG=5 GAME_RAISE=7");
  ASSERT_EQ(done.code, 0) << done.output;
  EXPECT_THAT(done.output, HasSubstr("the environment failed on"));
  std::map<std::string, std::string> reasons;
  int64_t num_good = 0;
  for (const Json& row : dumped(1)) {
    const auto prompt = row["input"].get<std::string>();
    const bool failed = row.contains("environment_error");
    EXPECT_EQ(failed, row["score"].is_null()) << row;
    num_good += failed ? 0 : 1;
    if (failed) reasons[prompt] += row["environment_error"].get<std::string>() + "\n";
  }
  EXPECT_THAT(reasons["?12*7="], HasSubstr("ended with exit code 3"));
  EXPECT_THAT(reasons["?15*7="], HasSubstr("rollout.multi_turn.timeout"));
  EXPECT_THAT(reasons["?17*7="], HasSubstr("ValueError: no such move"));
  EXPECT_EQ(num_good, 36 + 2) << "the rows of nine prompts, and two next to those that hang: they got new objects";
}

TEST_F(Turns, TooManyFailuresEndTheRunWithTheReason) {
  const Outcome done = mortise("train run.toml data.train_batch_size=12 actor.ppo_mini_batch_size=12", "GAME_RAISE=2");
  EXPECT_EQ(done.code, 0) << "one of twelve prompts may fail: " << done.output;
  const Outcome ended = mortise(
      "train run.toml trainer.default_local_dir=b data.train_batch_size=12 "
      "actor.ppo_mini_batch_size=12 plugins.max_failed_fraction=0.05",
      "GAME_RAISE=2");
  EXPECT_NE(ended.code, 0);
  // The third failure is one too many. The fourth row of the prompt may answer at the same time.
  EXPECT_THAT(ended.output, testing::ContainsRegex("the environment failed on [34] of 48 rows"));
  EXPECT_THAT(ended.output, HasSubstr("no such move"));
}

// Each row would cost its time limit.
TEST_F(Turns, AGameThatHangsEndsTheRunBeforeAllRowsHaveFailed) {
  dir_.write("slow.py",
             "import time\n\n\nclass Slow:\n    def step(self, text):\n        time.sleep(3600)\n\n\n"
             "class SlowStart:\n    def reset(self, prompt):\n        time.sleep(3600)\n\n"
             "    def step(self, text):\n        return '', 0.0, True\n");
  for (const std::string game : {"Slow", "SlowStart"}) {
    const Outcome ended = mortise("train run.toml rollout.multi_turn.params.class=slow.py:" + game +
                                  " rollout.multi_turn.timeout=1s plugins.num_workers=1 "
                                  "rollout.multi_turn.reward_weight=0 reward.0.use=length");
    EXPECT_EQ(ended.code, 9) << ended.output;
    EXPECT_THAT(ended.output, testing::ContainsRegex("the environment failed on [0-9]+ of 32 rows"));
    EXPECT_THAT(ended.output, Not(HasSubstr("the environment failed on 32 of 32 rows")));
    EXPECT_THAT(ended.output, HasSubstr("rollout.multi_turn.timeout"));
  }
}

TEST_F(Turns, LimitsEndARowAndTheDumpSaysWhich) {
  ASSERT_EQ(mortise("train run.toml trainer.total_training_steps=1 rollout.multi_turn.max_assistant_turns=2 "
                    "rollout.multi_turn.max_turn_length=6")
                .code,
            0);
  int64_t num_cut = 0, num_ended = 0;
  for (const Json& row : dumped(1)) {
    const auto runs = runs_of(row["response_mask"]);
    for (size_t i = 0; i < runs.size(); i += 2) EXPECT_LE(runs[i].second, 6);
    EXPECT_LE(runs.size(), 3U);
    num_cut += row["turns_end"] == "max_turn_length" ? 1 : 0;
    num_ended += row["turns_end"] == "max_assistant_turns" ? 1 : 0;
    EXPECT_EQ(row["finish_reason"], row["turns_end"] == "max_turn_length" ? "length" : "stop") << row;
  }
  EXPECT_GT(num_cut, 0);
  EXPECT_GT(num_ended, 0);
}

TEST_F(Turns, WhatCannotWorkIsRefusedBeforeTheFirstStep) {
  const auto refused = [&](const std::string& more) {
    const Outcome done = mortise("train run.toml --dry-run " + more);
    EXPECT_NE(done.code, 0) << more;
    return done.output;
  };
  EXPECT_THAT(refused("rollout.multi_turn.params.class=game.py:Chess"), HasSubstr("has no 'Chess'"));
  EXPECT_THAT(refused("~rollout.multi_turn.params"), HasSubstr("neither a tool nor a class"));
  EXPECT_THAT(refused("rollout.multi_turn.environment=chess"), HasSubstr("no environment is named 'chess'"));
  const std::string tools = "~rollout.multi_turn.params rollout.multi_turn.tools='[\"tools.py:mul\"]' ";
  EXPECT_THAT(refused(tools), HasSubstr("there is no reward"));
  EXPECT_THAT(refused("rollout.multi_turn.reward_weight=0"), HasSubstr("rollout.multi_turn.reward_weight is 0"));
  dir_.write("bad.py", "def f(x: int):\n    return x\n");
  EXPECT_THAT(refused("~rollout.multi_turn.params rollout.multi_turn.tools='[\"bad.py:f\"]'"),
              HasSubstr("no docstring"));
  dir_.write("hints.py", "def f(x: 'Matrix'):\n    \"\"\"Doubles.\n\n    Args:\n        x: it\n    \"\"\"\n");
  EXPECT_THAT(refused("~rollout.multi_turn.params rollout.multi_turn.tools='[\"hints.py:f\"]'"),
              HasSubstr("the type hints of 'f' cannot be read: NameError"));
  dir_.write("short.jinja", "{{ messages[-1].content }}");
  EXPECT_THAT(refused("model.custom_chat_template=short.jinja"), HasSubstr("the chat template cannot continue"));
  dir_.write("text.jsonl", "{\"prompt\": \"1*1\", \"answer\": \"1\"}\n");
  EXPECT_THAT(refused("data.train_files='[\"text.jsonl\"]'"), HasSubstr("not a list of messages"));
}

TEST_F(Turns, AnEditOfTheGameIsSeenByAResume) {
  ASSERT_EQ(mortise("train run.toml trainer.total_training_steps=1").code, 0);
  dir_.write("game.py", std::string(kGame) + "\n# edited\n");
  const Outcome resumed = mortise("train run.toml");
  EXPECT_NE(resumed.code, 0);
  EXPECT_THAT(resumed.output, HasSubstr("game.py"));
}

TEST_F(Turns, ValidationPlaysToo) {
  ASSERT_EQ(mortise("train run.toml data.val_files='[\"few.jsonl\"]' trainer.total_training_steps=1 "
                    "trainer.validation_data_dir=val trainer.test_freq=1")
                .code,
            0);
  const std::vector<Json> rows = rows_of(dir_.path() / "val" / "1.jsonl");
  ASSERT_EQ(rows.size(), 12U);
  for (const Json& row : rows) EXPECT_TRUE(row.contains("turns")) << row;
}

// A file of prompts, with the environment of a run's file; the same rows for any number of workers and rows at a time.
TEST_F(Turns, GeneratePlaysTheEpisodesOfAFileOfPrompts) {
  const std::string generate = "generate --config run.toml --prompts few.jsonl rollout.n=2 --json --out ";
  const Outcome done = mortise(generate + "a.jsonl rollout.max_num_seqs=3 2>/dev/null");
  ASSERT_EQ(done.code, 0) << done.output;
  const std::vector<Json> rows = rows_of(dir_.path() / "a.jsonl");
  ASSERT_EQ(rows.size(), 24U);
  int64_t num_turns = 0, num_sampled = 0;
  for (size_t i = 0; i < rows.size(); ++i) {
    const Json& row = rows[i];
    EXPECT_EQ(row["prompt_index"], i / 2);
    EXPECT_EQ(row["sample_index"], i % 2);
    double expected = 0.0;
    for (const Json& message : row["turns"]) {
      if (message["role"] != "assistant") continue;
      ++num_turns;
      const auto text = message["content"].get<std::string>();
      expected += !text.empty() && std::string("024").find(text.back()) != std::string::npos ? 1.0 : 0.0;
    }
    EXPECT_EQ(row["rewards"]["environment"], expected) << row;
    EXPECT_EQ(row["response_mask"].size(), row["token_ids"].size());
    for (const Json& one : row["response_mask"]) num_sampled += one.get<int64_t>();
  }
  const auto summary = parse_json(done.output, "summary");
  ASSERT_TRUE(summary.ok()) << done.output;
  EXPECT_EQ((*summary)["turns"], num_turns);
  EXPECT_EQ((*summary)["completion_tokens"], num_sampled);
  EXPECT_GT(num_turns, 24) << "rows have several turns";

  dir_.write("workers.toml", std::string(kToml) + "num_workers = 1\n");
  ASSERT_EQ(mortise("generate --config workers.toml --model model --prompts few.jsonl rollout.n=2 --out b.jsonl").code,
            0);
  EXPECT_EQ(default_env().read_file(dir_.path() / "b.jsonl").value(),
            default_env().read_file(dir_.path() / "a.jsonl").value());
}

// Tools give no rewards, and generate needs none. What has no meaning with turns is refused.
TEST_F(Turns, GenerateCallsToolsWithoutRewards) {
  const std::string generate =
      "generate --model model --prompts few.jsonl rollout.multi_turn.enable=true "
      "rollout.multi_turn.tools='[\"tools.py:mul\"]' rollout.multi_turn.format=llama3_pythonic "
      "rollout.response_length=16 --out t.jsonl ";
  const Outcome done = mortise(generate);
  ASSERT_EQ(done.code, 0) << done.output;
  const std::vector<Json> rows = rows_of(dir_.path() / "t.jsonl");
  ASSERT_EQ(rows.size(), 12U);
  for (const Json& row : rows) {
    EXPECT_TRUE(row["score"].is_null()) << row;
    EXPECT_TRUE(row.contains("num_tool_calls")) << row;
  }
  const Outcome lost = mortise(
      "generate --model model --prompts absent.jsonl rollout.multi_turn.enable=true "
      "rollout.multi_turn.tools='[\"tools.py:mul\"]' rollout.multi_turn.format=llama3_pythonic "
      "rollout.response_length=16 --out nowhere/t.jsonl");
  EXPECT_NE(lost.code, 0);
  EXPECT_THAT(lost.output, HasSubstr("nowhere/t.jsonl")) << "it is told before the prompts are read";
  EXPECT_THAT(mortise(generate + "rollout.top_log_probs=2").output, HasSubstr("have no top log-probs"));
  EXPECT_THAT(mortise("generate --model model --prompts few.jsonl rollout.multi_turn.max_user_turns=1 --out t.jsonl "
                      "rollout.response_length=2")
                  .output,
              HasSubstr("rollout.multi_turn.enable is false"));
}

// The blocks of docs/turns.md about a class: guess.py, and its settings.
TEST_F(Turns, TheGameOfThePageRuns) {
  const std::string page = default_env().read_file(Path(MORTISE_SOURCE_DIR) / "docs/turns.md").value();
  const auto block_from = [&](size_t from, const std::string& language) {
    const size_t begin = page.find("```" + language + "\n", from) + language.size() + 4;
    return page.substr(begin, page.find("```", begin) - begin);
  };
  const size_t section = page.find("## Environments in Python");
  ASSERT_NE(section, std::string::npos);
  dir_.write("guess.py", block_from(section, "python"));
  std::string toml = kToml;
  const size_t rollout = toml.find("[rollout]"), trainer = toml.find("[trainer]");
  toml.replace(rollout, trainer - rollout, block_from(section, "toml"));
  dir_.write("page.toml", toml);
  const Outcome done = mortise("train page.toml rollout.n=4");
  ASSERT_EQ(done.code, 0) << done.output;
  double sum = 0.0;
  for (const Json& row : dumped(1)) {
    EXPECT_LE(runs_of(row["response_mask"]).size(), 7U) << "four guesses";
    sum += row["score"].get<double>();
  }
  EXPECT_GT(sum, 0.0) << "some of 32 rows guess one of ten numbers";
  EXPECT_LT(sum, 32.0);
}

TEST_F(Turns, TheGameInCppIsTheSameInWorkersAndInTheTrainer) {
  const std::string game =
      "train run.toml rollout.multi_turn.environment=guess_number ~rollout.multi_turn.params "
      "rollout.multi_turn.params.largest=4 ";
  const Outcome done = mortise(game);
  ASSERT_EQ(done.code, 0) << done.output;
  ASSERT_EQ(mortise(game + "plugins.isolation=none trainer.default_local_dir=b trainer.rollout_data_dir=b/dump").code,
            0);
  expect_same_bits(bits_of_run(out("b"), 2), bits_of_run(out(), 2), "in the trainer's own process");
  int64_t num_right = 0, num_wrong = 0;
  for (const Json& row : dumped(1)) (row["score"] == 1.0 ? num_right : num_wrong) += 1;
  EXPECT_GT(num_right, 0);
  EXPECT_GT(num_wrong, 0);
}

TEST_F(Turns, SchemasOfToolsAreThoseOfTransformers) {
  const char* python = std::getenv("MORTISE_ORACLES_PYTHON");
  if (python == nullptr) GTEST_SKIP() << "MORTISE_ORACLES_PYTHON names no Python with transformers";
  const std::string source = MORTISE_SOURCE_DIR;
  const Outcome compared =
      run(std::string(python) + " " + source + "/tests/plugins/tool_schema_oracle.py " + source, dir_.path());
  EXPECT_EQ(compared.code, 0) << compared.output;
}

// The search tool of configs/search.toml finds the document of a name among others with that name, whatever the query.
TEST_F(Turns, TheSearchToolFindsDocumentsForAnyQuery) {
  const Outcome made = run(program("make_tool_task") + " runs/search --search", dir_.path());
  ASSERT_EQ(made.code, 0) << made.output;
  const Path task = dir_.path() / "runs/search";
  std::string expected;
  for (const Json& row : rows_of(task / "data/val.jsonl")) {
    dir_.write("query.json", row["prompt"][0]["content"].dump());
    expected = row["prompt"][0]["content"].get<std::string>() + " " + row["answer"].get<std::string>();
    break;
  }
  dir_.write("ask.py", R"(
import json, sys
sys.path.insert(0, "runs/search")
import search
name = json.load(open("query.json"))
print(search.search(name), search.search("where is " + name + "?"), sep="|")
for query in ["", "***", '"', "NEAR(", "a AND", "text:", "x" * 100000, name + " OR"]:
    assert isinstance(search.search(query), str), query
print(search.search("zzzz"))
)");
  const Outcome asked = run("python3 ask.py", dir_.path());
  EXPECT_EQ(asked.code, 0) << asked.output;
  EXPECT_EQ(asked.output, expected + "|" + expected + "\nnothing found\n");
}

// A short warm start already searches. What the row gets are documents of the corpus.
TEST_F(Turns, ASearchGoesThroughAWholeRun) {
  const std::string configs = std::string(MORTISE_SOURCE_DIR) + "/configs/";
  const std::string here = " trainer.num_threads=2 trainer.logger='[]' ";
  const Outcome made = run(program("make_tool_task") + " runs/search --search", dir_.path());
  ASSERT_EQ(made.code, 0) << made.output;
  const Outcome warm = mortise("sft " + configs + "sft_search.toml sft.total_training_steps=150" + here);
  ASSERT_EQ(warm.code, 0) << warm.output;
  const Outcome done = mortise("train " + configs + "search.toml trainer.total_training_steps=1 " +
                               "trainer.val_before_train=false trainer.test_freq=-1 trainer.rollout_data_dir=dump " +
                               "model.path=runs/search/warm/global_step_150/huggingface" + here);
  ASSERT_EQ(done.code, 0) << done.output;
  std::set<std::string> documents = {"nothing found", "no words"};
  for (const Json& row : rows_of(dir_.path() / "runs/search/corpus.jsonl")) documents.insert(row["text"]);
  int64_t num_answers = 0;
  for (const Json& row : rows_of(dir_.path() / "dump" / "1.jsonl")) {
    for (const Json& message : row["turns"]) {
      if (message["role"] != "tool" || message["content"].get<std::string>().starts_with("{\"error\"")) continue;
      EXPECT_EQ(documents.count(message["content"]), 1U) << row;
      ++num_answers;
    }
  }
  EXPECT_GT(num_answers, 3);
}

// configs/tools.toml, as its first lines say. The warm start calls the tool in three of ten chats.
TEST_F(Turns, AModelLearnsToCallATool) {
  const std::string configs = std::string(MORTISE_SOURCE_DIR) + "/configs/";
  const std::string here = " trainer.num_threads=2 trainer.logger='[]' ";
  const Outcome made = run(program("make_tool_task") + " runs/tools", dir_.path());
  ASSERT_EQ(made.code, 0) << made.output;
  const Outcome warm = mortise("sft " + configs + "sft_tools.toml" + here);
  ASSERT_EQ(warm.code, 0) << warm.output;
  const Outcome done = mortise("train " + configs + "tools.toml" + here);
  ASSERT_EQ(done.code, 0) << done.output;
  const std::vector<Json> steps = rows_of(dir_.path() / "runs/tools/train/metrics.jsonl");
  ASSERT_GE(steps.size(), 30U);
  // Every CPU rounds differently, so every machine has a run of its own. One step is 128 sampled rows, and late steps
  // have rewards from 0.66 to 0.95. Several steps together tell whether the model has learnt.
  const auto mean_of = [&](const char* name, size_t first, size_t last) {
    double sum = 0.0;
    for (size_t i = first; i < last; ++i) sum += steps[i][name].get<double>();
    return sum / static_cast<double>(last - first);
  };
  const size_t end = steps.size();  // the first line is the validation of the warm start
  for (const char* name : {"reward", "tool_call_counts/mean"})
    EXPECT_GT(mean_of(name, end - 10, end), mean_of(name, 1, 4) + 0.2) << name;
  EXPECT_GT(mean_of("tool_call_counts/mean", end - 10, end), 0.8);
  for (const char* metric : {"tool_call_counts/max", "tool_call_counts/min", "tools/call_frequency",
                             "tools/failure_frequency", "environment/failed_ratio"})
    EXPECT_TRUE(steps.back().contains(metric)) << metric;
}

}  // namespace
}  // namespace mortise::test
