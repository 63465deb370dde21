// The reward `python`: TRL's and verl's calls, what becomes of exceptions, crashes and hangs, and errors at start-up.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <sstream>

#include "../../plugins/shared/deadline.h"
#include "python_reward_fixture.h"
#include "support/processes.h"

namespace mortise::test {
namespace {

using testing::AllOf;
using testing::HasSubstr;

TEST_F(PythonReward, GivesATrlFunctionAllThatTrlGives) {
  auto plugin = make(R"(
def reward(prompts, completions, completion_ids, answer, level, meta, trainer_state, log_extra, log_metric, **kwargs):
    assert prompts == ["prompt"] * 3, prompts
    assert completion_ids == [[65], [65, 65], [65]], completion_ids
    assert meta == [{"b": 1, "a": [None, 2.5]}, None, None], meta
    assert level == [1, 2, None] and kwargs == {"ratio": [0.1, None, 1e300]}, (level, kwargs)
    assert trainer_state.global_step == 6 and trainer_state.is_world_process_zero
    log_extra("length", [len(c) for c in completions])
    for c in completions:
        log_extra("piecewise", [[c]])
    log_metric("accuracy", 0.25)
    log_metric("accuracy", 0.75)
    return [float(c == a) for c, a in zip(completions, answer)]
)");
  RewardRows rows{{"7", "ä\"\n\t8", "9"},
                  {text("answer", {"7", "ä\"\n\t8", "1"}),
                   {"level", MORTISE_COLUMN_I64, {}, {1, 2, std::nullopt}},
                   {"ratio", MORTISE_COLUMN_F64, {}, {0.1, std::nullopt, 1e300}},
                   json("meta", {R"({"b": 1, "a": [null, 2.5]})", std::nullopt, std::nullopt})},
                  {1, 2, 1},
                  {},
                  0};
  rows.step = 7;
  EXPECT_EQ(plugin.score(rows), (std::vector<double>{1, 1, 0}));
  EXPECT_TRUE(plugin.plugin.call.failed_rows.empty()) << failure(plugin, 0);
  EXPECT_EQ(plugin.values["length"], (std::map<int64_t, double>{{0, 1}, {1, 5}, {2, 1}}));
  EXPECT_EQ(plugin.values.count("piecewise"), 0U);
  EXPECT_THAT(plugin.plugin.call.log,
              testing::Contains(HasSubstr("log_extra('piecewise'): only texts and finite numbers")));
  EXPECT_EQ(plugin.plugin.call.metrics.at("accuracy").mean(), 0.5);
}

TEST_F(PythonReward, GivesMessagesWhereThePromptWasAChat) {
  auto plugin = make(R"(
def reward(prompts, completions, **kwargs):
    assert prompts[0] == [{"role": "user", "content": "hi"}], prompts
    assert prompts[1] == "prompt" and completions[1] == "plain"
    return [1.0 if c == [{"role": "assistant", "content": "hello"}] else 0.5 for c in completions]
)");
  RewardRows rows = completions({"hello", "plain"});
  rows.messages = {R"([{"role": "user", "content": "hi"}])", ""};
  EXPECT_EQ(plugin.score(rows), (std::vector<double>{1, 0.5})) << failure(plugin, 0);
}

TEST_F(PythonReward, NoneAndNanDoNotApplyAndBadEntriesFailTheirRow) {
  auto plugin = make(R"(
import math
class Tensor:
    def __float__(self): return 0.1
def reward(completions, **kwargs):
    return (None, math.nan, True, Tensor(), "1.0", math.inf, 3)
)");
  EXPECT_EQ(shown(plugin.score(completions({"", "", "", "", "", "", ""}))),
            (std::vector<double>{-99, -99, 1, 0.1, -99, -99, 3}));
  EXPECT_EQ(plugin.plugin.call.failed_rows.size(), 2U);
  EXPECT_THAT(failure(plugin, 4), HasSubstr("'reward' gave '1.0' (str) where a number belongs"));
  EXPECT_THAT(failure(plugin, 5), HasSubstr("gave the reward inf"));
}

TEST_F(PythonReward, AWrongListFailsTheBatch) {
  auto few = make("def reward(completions, **kw): return [1.0]");
  EXPECT_EQ(shown(few.score(completions({"a", "b"}))), (std::vector<double>{-99, -99}));
  EXPECT_THAT(failure(few, 1), HasSubstr("returned 1 rewards for 2 completions"));
  auto scalar = make("def reward(completions, **kw): return 1.0");
  scalar.score(completions({"a"}));
  EXPECT_THAT(failure(scalar, 0), HasSubstr("returned 1.0 (float), not a list of 1 rewards"));
  auto needs = make("def reward(completions, solution): return [0.0]");
  needs.score({{"a"}, {text("answer", {"1"})}, {}, {}, 0});
  EXPECT_THAT(failure(needs, 0), AllOf(HasSubstr("needs 'solution'"), HasSubstr("answer")));
}

TEST_F(PythonReward, TakesMethodsOfEveryKind) {
  const char* const text = R"(
class Judge:
    def __init__(self):
        self.one = 1.0
    def plain(self, completions, **kwargs):
        return [self.one for _ in completions]
    @classmethod
    def of_class(cls, completions, **kwargs):
        return [2.0 for _ in completions]
    @staticmethod
    def of_nobody(completions, **kwargs):
        return [3.0 for _ in completions]
    def __call__(self, completions, **kwargs):
        return [4.0 for _ in completions]
)";
  double expected = 1.0;
  for (const char* name : {"Judge.plain", "Judge.of_class", "Judge.of_nobody", "Judge"})
    EXPECT_EQ(make(text, {{"function", name}}).score(completions({"x"})), (std::vector<double>{expected++})) << name;
}

TEST_F(PythonReward, AnExceptionNamesItsLine) {
  auto plugin = make(R"(
import json
def inner(text):
    return json.loads(text)["score"]
def reward(completions, **kwargs):
    return [inner(c) for c in completions]
)",
                     {{"function", "reward"}});
  EXPECT_EQ(plugin.score(completions({R"({"score": 2})"})), (std::vector<double>{2}));
  plugin.score(completions({"{}", "{}"}));
  EXPECT_THAT(failure(plugin, 1), AllOf(HasSubstr("KeyError: 'score'"), HasSubstr("my_reward.py:4, in inner")));
  plugin.score(completions({"no"}));
  EXPECT_THAT(failure(plugin, 0),
              AllOf(HasSubstr("JSONDecodeError"), HasSubstr("my_reward.py:4"), HasSubstr("raised at")));
}

constexpr const char* kVerl = R"(
import os, signal, sys, time, re
def compute_score(data_source, solution_str, ground_truth, extra_info=None):
    print("looking at", solution_str)
    os.write(1, b"raw output\n")
    if solution_str == "raise":
        raise ValueError("no good")
    if solution_str == "exit":
        sys.exit(3)
    if solution_str == "crash":
        os.kill(os.getpid(), signal.SIGSEGV)
    if solution_str == "hang":
        time.sleep(1000)
    if solution_str == "backtrack":
        re.match("(a|aa)+$", "a" * 100 + "b")
    if solution_str == "dict":
        return {"score": 0.5, "acc": True, "pred": "text", "distance": 1.5, "index": extra_info.get("index")}
    if solution_str == "bad dict":
        return {"acc": 1}
    if solution_str == "none":
        return None
    return float(solution_str == ground_truth) + (10 if data_source == "gsm8k" else 0)
)";

TEST_F(PythonReward, GivesAVerlFunctionAllThatVerlGives) {
  auto plugin = make(kVerl);
  EXPECT_THAT(plugin.plugin.call.log.at(0), AllOf(HasSubstr("compute_score()"), HasSubstr("verl style")));
  EXPECT_EQ(shown(plugin.score(verl_rows({"42", "41", "dict", "none"}))), (std::vector<double>{11, 10, 0.5, -99}));
  EXPECT_TRUE(plugin.plugin.call.failed_rows.empty());
  EXPECT_EQ(plugin.values["acc"], (std::map<int64_t, double>{{2, 1}}));
  EXPECT_EQ(plugin.values["distance"], (std::map<int64_t, double>{{2, 1.5}}));
  EXPECT_EQ(plugin.values["index"], (std::map<int64_t, double>{{2, 3}}));
  EXPECT_EQ(plugin.values.size(), 3U) << "text is no metric";
}

TEST_F(PythonReward, FindsOtherGroundTruthsAndSaysWhenThereIsNone) {
  const char* source = "def compute_score(solution_str, ground_truth): return 1 if solution_str == ground_truth else 0";
  auto usual = make(source);
  EXPECT_EQ(usual.score({{"a", "b"}, {text("answer", {"a", "a"})}, {}, {}, 0}), (std::vector<double>{1, 0}));
  auto nested = make(source, {{"ground_truth", "meta.gold"}});
  EXPECT_EQ(nested.score({{"a"}, {json("meta", {R"({"gold": "a"})"})}, {}, {}, 0}), (std::vector<double>{1}));
  nested.score({{"a"}, {}, {}, {}, 0});
  EXPECT_THAT(nested.plugin.call.log.back(),
              HasSubstr("no row of this batch has a ground truth (looked for meta.gold)"));
}

TEST_F(PythonReward, AVerlRowFailsAlone) {
  auto plugin = make(kVerl);
  EXPECT_EQ(shown(plugin.score(verl_rows({"42", "raise", "bad dict", "exit", "42"}))),
            (std::vector<double>{11, -99, -99, -99, 11}));
  EXPECT_THAT(failure(plugin, 1), AllOf(HasSubstr("ValueError: no good"), HasSubstr("my_reward.py:7")));
  EXPECT_THAT(failure(plugin, 2), HasSubstr("a dict without 'score': it has acc"));
  EXPECT_THAT(failure(plugin, 3), HasSubstr("SystemExit: 3"));
}

// A cut emoji is no UTF-8, and the other rows are scored.
TEST_F(PythonReward, HalfACharacterInATextIsReplaced) {
  auto plugin = make(
      "def compute_score(solution_str, ground_truth):\n"
      "    if solution_str == 'raise': raise ValueError('half \\ud83d')\n"
      "    return {'score': 1, 'pred': '\\ud83d'}\n");
  EXPECT_EQ(shown(plugin.score(verl_rows({"42", "raise", "42"}))), (std::vector<double>{1, -99, 1}));
  EXPECT_THAT(failure(plugin, 1), HasSubstr("ValueError: half \xEF\xBF\xBD"));
}

TEST_F(PythonReward, ACrashOrAHangCostsItsRow) {
  auto plugin = make(kVerl, {{"row_limit", "2"}});
  give_time(plugin, 300'000);
  EXPECT_EQ(shown(plugin.score(verl_rows({"42", "crash", "42", "hang", "backtrack", "41", "crash"}))),
            (std::vector<double>{11, -99, 11, -99, -99, 10, -99}));
  EXPECT_THAT(failure(plugin, 1), HasSubstr("ended with signal 11 (Segmentation fault) while it scored the row"));
  EXPECT_THAT(failure(plugin, 3), HasSubstr("the row took longer than 2 s"));
  EXPECT_THAT(failure(plugin, 4), HasSubstr("the row took longer than 2 s"));
  EXPECT_EQ(shown(plugin.score(verl_rows({"42"}))), (std::vector<double>{11}));
}

TEST_F(PythonReward, ABatchThatHangsEndsAtTheDeadlineAndTheNextIsScored) {
  auto plugin = make(R"(
import time
def reward(completions, **kwargs):
    while completions[0] == "hang":
        pass
    return [1.0 for c in completions]
)");
  give_time(plugin, 400);
  EXPECT_EQ(shown(plugin.score(completions({"hang", "a"}))), (std::vector<double>{-99, -99}));
  EXPECT_EQ(plugin.status, MORTISE_OK);
  EXPECT_EQ(plugin.plugin.call.failed_rows.at(1).code, MORTISE_DEADLINE_EXCEEDED);
  EXPECT_THAT(failure(plugin, 1), HasSubstr("'reward' took longer than the time for the batch"));
  give_time(plugin, 300'000);
  EXPECT_EQ(plugin.score(completions({"a", "b"})), (std::vector<double>{1, 1}));
}

// What keeps the host's deadline: nothing is waited for up to the deadline itself.
TEST_F(PythonReward, ATenthOfTheTimeIsKeptToReport) {
  auto plugin = make("def reward(completions, **kw): return [1.0]");
  mortise_call& call = plugin.plugin.call;
  const auto waits_until = [&] { return waiting_deadline_ns(Call(host(), &call)); };
  const auto kept_ns = [&] { return call.deadline_ns - waits_until(); };
  give_time(plugin, 3'600'000);
  EXPECT_EQ(kept_ns(), 200 * kMs) << "at most";
  give_time(plugin, 1'000);
  EXPECT_LE(kept_ns(), 100 * kMs);
  give_time(plugin, -1);
  EXPECT_EQ(kept_ns(), 0);
  call.deadline_ns = 0;
  EXPECT_EQ(waits_until(), 0);
}

TEST_F(PythonReward, ABatchThatCrashesFailsWholeAndTheNextIsScored) {
  auto plugin =
      make("import os\ndef reward(completions, **kw):\n    if completions[0] == 'x': os._exit(7)\n    return [2.0]");
  EXPECT_EQ(shown(plugin.score(completions({"x"}))), (std::vector<double>{-99}));
  EXPECT_THAT(failure(plugin, 0), HasSubstr("ended with exit code 7 while it scored the batch"));
  EXPECT_EQ(plugin.score(completions({"a"})), (std::vector<double>{2}));
}

TEST_F(PythonReward, AVerlRowPastTheBatchDeadlineLeavesTheScoredOnes) {
  auto plugin = make(kVerl, {{"row_limit", "100"}});
  give_time(plugin, 4'000);
  EXPECT_EQ(shown(plugin.score(verl_rows({"42", "hang", "42"}))), (std::vector<double>{11, -99, -99}));
  EXPECT_THAT(failure(plugin, 1), HasSubstr("the time for the batch was over while the row was scored"));
  EXPECT_THAT(failure(plugin, 2), HasSubstr("not scored"));
}

TEST_F(PythonReward, RunsCoroutinesAndRowsOfThemAtOnce) {
  auto trl =
      make("import asyncio\nasync def reward(completions, **kw):\n    await asyncio.sleep(0.01)\n    return [1.0]");
  EXPECT_EQ(trl.score(completions({"a"})), (std::vector<double>{1}));
  EXPECT_EQ(trl.score(completions({"a"})), (std::vector<double>{1}));
  // No row ends before all have begun.
  auto verl = make(R"(
import asyncio
num_begun = 0
async def compute_score(data_source, solution_str, ground_truth, extra_info):
    global num_begun
    num_begun += 1
    while num_begun < 10:
        await asyncio.sleep(0.001)
    if solution_str == "raise":
        raise ValueError("no good")
    return {"score": float(solution_str), "twice": 2 * float(solution_str)}
)");
  give_time(verl, 120'000);
  EXPECT_EQ(shown(verl.score(verl_rows({"1", "2", "raise", "4", "5", "6", "7", "8", "9", "10"}))),
            (std::vector<double>{1, 2, -99, 4, 5, 6, 7, 8, 9, 10}));
  EXPECT_EQ(verl.values["twice"].at(9), 20);
}

TEST_F(PythonReward, DoesNotDependOnHowTheBatchIsCut) {
  auto plugin = make(kVerl);
  const std::vector<std::string> all = {"42", "raise", "dict", "none", "41"};
  const auto whole = shown(plugin.score(verl_rows(all)));
  std::vector<double> single;
  for (const std::string& one : all) single.push_back(shown(plugin.score(verl_rows({one}))).at(0));
  EXPECT_EQ(whole, single);
  EXPECT_TRUE(plugin.score({}).empty());
}

TEST_F(PythonReward, DamagedTextFailsAtMostItsRow) {
  auto plugin = make("def reward(completions, **kw): return [float(len(c)) for c in completions]");
  const RewardRows rows{
      {"\xff\xfe", std::string("\0x", 2), ""}, {json("meta", {R"({"a": 1})", "{broken", "[]"})}, {}, {}, 0};
  EXPECT_EQ(shown(plugin.score(rows)), (std::vector<double>{2, -99, 0}));
  EXPECT_THAT(failure(plugin, 1), HasSubstr("column 'meta' is not valid JSON"));
}

TEST_F(PythonReward, GivesKeywordArgumentsOfTheConfigAndImportsNeighbours) {
  dir_.write("helper_of_mine.py", "def right(a, b): return a == b");
  auto plugin = make(
      "from helper_of_mine import right\n"
      "class Scorer:\n"
      "    def __call__(self, completions, gold, bonus=0, **kwargs):\n"
      "        return [right(c, gold) + bonus for c in completions]\n"
      "score = Scorer()\n",
      {{"function", "score"}, {"kwargs", R"({"gold": "a", "bonus": 0.5})"}});
  EXPECT_EQ(plugin.score(completions({"a", "b"})), (std::vector<double>{1.5, 0.5})) << failure(plugin, 0);
}

TEST_F(PythonReward, RunsTrlsOwnFunctions) {
  const char* const python = std::getenv("MORTISE_ORACLES_PYTHON");
  if (python == nullptr) GTEST_SKIP() << "MORTISE_ORACLES_PYTHON is not set: TRL's own reward functions were not run";
  const char* source =
      "from trl.rewards import get_soft_overlong_punishment, think_format_reward\n"
      "overlong = get_soft_overlong_punishment(max_completion_len=10, soft_punish_cache=4)\n";
  // TRL imports torch and transformers. A busy machine needs more than the default limit for that.
  const std::string patience = "1200";
  auto form = make(source, {{"python", python}, {"function", "think_format_reward"}, {"start_limit", patience}});
  RewardRows rows = completions({"<think>\nThis is my reasoning.\n</think>\nThis is my answer.",
                                 "<think>\nThis is my reasoning.\nThis is my answer."});
  rows.messages.assign(2, R"([{"role": "user", "content": "hi"}])");
  EXPECT_EQ(form.score(rows), (std::vector<double>{1, 0})) << form.plugin.call.error << failure(form, 0);
  auto overlong = make(source, {{"python", python}, {"function", "overlong"}, {"start_limit", patience}});
  rows.num_ids = {6, 8};
  EXPECT_EQ(overlong.score(rows), (std::vector<double>{0, -0.5})) << failure(overlong, 0);
}

TEST_F(PythonReward, EndsAllThatItStarted) {
  const Path note = dir_ / "pids";
  {
    auto plugin = make(
        "import os, subprocess\n"
        "def reward(completions, **kw):\n"
        "    child = subprocess.Popen(['sleep', '1000'])\n"
        "    open('" +
        note.string() +
        "', 'w').write('%d %d' % (os.getpid(), child.pid))\n"
        "    return [1.0]\n");
    EXPECT_EQ(plugin.score(completions({"a"})), (std::vector<double>{1})) << failure(plugin, 0);
  }
  std::istringstream pids(dir_.read("pids"));
  pid_t interpreter = 0, child = 0;
  ASSERT_TRUE(pids >> interpreter >> child);
  EXPECT_TRUE(all_end({interpreter, child})) << pids.str();
}

TEST_F(PythonReward, StopsWithTheRun) {
  auto plugin = make("import time\ndef reward(completions, **kw):\n    time.sleep(1000)");
  plugin.plugin.call.cancel = true;
  plugin.score(completions({"a"}));
  EXPECT_EQ(plugin.status, MORTISE_CANCELLED);
}

TEST_F(PythonReward, WhatCannotWorkIsSaidAtTheStart) {
  EXPECT_THAT(refusal("x = 1"), HasSubstr("has no functions of its own: say which with function"));
  EXPECT_THAT(refusal("def a(completions, **k): 1\ndef b(completions, **k): 1"), HasSubstr("has a, b: say which"));
  EXPECT_THAT(refusal("def f(completions, **k): 1", {{"function", "g"}}), HasSubstr("has no function 'g'; it has f"));
  EXPECT_THAT(refusal("f = 3", {{"function", "f"}}), HasSubstr("has the type int: it is not a function"));
  EXPECT_THAT(refusal("def f(a, b): 1"), HasSubstr("takes (a, b): neither (prompts, completions, ...)"));
  EXPECT_THAT(refusal("def f(a, b): 1", {{"style", "verl"}}), HasSubstr("needs 'a', 'b'"));
  EXPECT_THAT(refusal("def f(x:\n  1"), AllOf(HasSubstr("SyntaxError"), HasSubstr("my_reward.py:1")));
  EXPECT_THAT(refusal("\nimport no_such_module_here"),
              AllOf(HasSubstr("ModuleNotFoundError"), HasSubstr("my_reward.py:2")));
  EXPECT_THAT(refusal("import os\nos._exit(4)"), HasSubstr("ended with exit code 4 before"));
  EXPECT_THAT(refusal("import time\ntime.sleep(1000)", {{"start_limit", "0.3"}}), HasSubstr("start_limit = 0.3 s"));
  EXPECT_THAT(refusal("def f(completions, **k): 1", {{"kwargs", "[1]"}}),
              HasSubstr("kwargs: '[1]' is not a JSON object"));
  EXPECT_THAT(refusal("def f(completions, **k): 1", {{"python", "no-such-python"}}),
              AllOf(HasSubstr("'no-such-python' cannot be started"), HasSubstr("not in PATH"), HasSubstr("python = ")));
  EXPECT_THAT(refusal("def f(completions, **k): 1", {{"python", "/bin/false"}}), HasSubstr("ended with exit code 1"));
  const RewardCall nowhere(plugin(), {{"path", "not_here.py"}});
  EXPECT_THAT(nowhere.plugin.call.error, AllOf(HasSubstr("there is no file 'not_here.py'"), HasSubstr("start at /")));
  const RewardCall folder(plugin(), {{"path", "."}});
  EXPECT_THAT(folder.plugin.call.error, HasSubstr("path: '.' is a folder; name a Python file in it"));
}

}  // namespace
}  // namespace mortise::test
