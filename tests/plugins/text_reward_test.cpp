// format, think_format, choice, repetition, soft_overlong, hard_overlong, language_consistency: TRL's and ms-swift's
// published behaviour, and TRL itself if MORTISE_ORACLES_PYTHON has it.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstdlib>
#include <fstream>
#include <nlohmann/json.hpp>
#include <random>

#include "reward_call.h"
#include "support/temp_dir.h"

namespace mortise::test {
namespace {

using testing::HasSubstr;

RewardCall reward(const std::string& name, std::map<std::string, std::string> params = {}) {
  static const mortise_pack* pack = load_pack(std::string(MORTISE_BINARY_DIR) + "/lib/mortise/packs/mortise.reward.so");
  return RewardCall(find_plugin(pack, MORTISE_KIND_REWARD, name), std::move(params));
}

std::vector<double> scores(RewardCall& plugin, std::vector<std::string> completions) {
  return plugin.score({std::move(completions), {}, {}, {}, 0});
}

TEST(Format, ThinkAnswerIsSwifts) {
  auto plugin = reward("format");
  EXPECT_EQ(scores(plugin, {"<think>a\nb</think> \n<answer>1</answer>", "<think></think><answer></answer>",
                            "<think>a</think>x</think><answer>1</answer>", "<think>a</think><answer>1</answer> ",
                            "<think>a</think><answer>1", " <think>a</think><answer>1</answer>",
                            "<think>a</think> so <answer>1</answer>", "<think>a<answer>1</answer>",
                            "<think>a</think><answer>1</answer><answer>2</answer>", ""}),
            (std::vector<double>{1, 1, 1, 0, 0, 0, 0, 0, 1, 0}));
}

TEST(Format, ReactIsSwifts) {
  auto plugin = reward("format", {{"layout", "react"}, {"miss", "-0.5"}});
  EXPECT_EQ(scores(plugin, {"<think>a</think>\nAction: f\nAction Input: {}", "<think>a</think>Action:Action Input:",
                            "<think>a</think>Action Input: {}", "Action: f\nAction Input: {}"}),
            (std::vector<double>{1, 1, -0.5, -0.5}));
}

TEST(Format, ThinkIsTrls) {
  auto plugin = reward("think_format");
  EXPECT_EQ(scores(plugin, {"<think>\nr\n</think>\nanswer", "<think>\nr\nanswer", "<think>a<think>b</think>",
                            "x<think>a</think>", "<think></think>", "</think><think>"}),
            (std::vector<double>{1, 0, 0, 0, 1, 0}));
}

TEST(Choice, FindsTheLetter) {
  auto plugin = reward("choice");
  const auto one = [&](const std::string& completion, const std::string& right) {
    return plugin.score({{completion}, {text("answer", {right})}, {}, {}, 0})[0];
  };
  for (const char* completion :
       {"B", "(B)", "b.", "\\boxed{B}", "\\boxed{\\text{B}}", "\\boxed{\\textbf{(B)} 42}", "A then \\boxed{B}",
        "<answer> B </answer>", "The answer is (B), not C.", "Answer: B", "**Answer:** B",
        "the correct choice is B. Paris", "I think A is wrong; B", "A or C? No: (B)", "The answer is \\(B\\)."}) {
    EXPECT_EQ(one(completion, "B"), 1) << completion;
    EXPECT_EQ(one(completion, "C"), 0) << completion;
  }
  EXPECT_EQ(one("", "B"), 0);
  EXPECT_EQ(one("Because", "B"), 0) << "a word is no letter";
  EXPECT_EQ(one("B's", "B"), 0);
  EXPECT_EQ(one("\\boxed{42} B", "B"), 0) << "what stands in the box counts";
  EXPECT_EQ(one("(D)", "d"), 1);
  EXPECT_EQ(one("The best is B. A good choice.", "B"), 1) << "A begins a sentence";
}

TEST(Choice, LettersAndWrongColumns) {
  auto few = reward("choice", {{"letters", "AB"}});
  EXPECT_EQ(few.score({{"C"}, {text("answer", {"A"})}, {}, {}, 0})[0], 0);
  const auto got = few.score({{"A", "A"}, {text("answer", {"42", std::nullopt})}, {}, {}, 0});
  EXPECT_TRUE(std::isnan(got[0]) && std::isnan(got[1]));
  EXPECT_THAT(few.plugin.call.failed_rows.at(0).text, HasSubstr("no letter of AB"));
  EXPECT_EQ(few.plugin.call.failed_rows.count(1), 0U);
  EXPECT_EQ(reward("choice", {{"letters", "a"}}).plugin.status, MORTISE_INVALID_ARGUMENT);
}

TEST(Repetition, WordsAreSwifts) {
  auto plugin = reward("repetition", {{"unit", "words"}, {"ngram_size", "2"}});
  // (1 - distinct / all) * -1 over lower-case words
  EXPECT_EQ(scores(plugin, {"a b A  B", "a b c", "a", "a a a a a", ""}),
            (std::vector<double>{-(1 - 2.0 / 3), 0, 0, -(1 - 1.0 / 4), 0}));
  // Python's lower() and split(): all of Unicode's letters and spaces.
  EXPECT_EQ(scores(plugin, {"Äh\u00a0so\u3000äh so", "\xff\xfe A a A a"}),
            (std::vector<double>{-(1 - 2.0 / 3), -(1 - 2.0 / 4)}));
  auto mild = reward("repetition", {{"unit", "words"}, {"max_penalty", "-0.5"}});
  EXPECT_EQ(scores(mild, {"x x x x"}), (std::vector<double>{-0.5 * (1 - 0.5)}));
}

TEST(Repetition, TokensAreTrls) {
  auto plugin = reward("repetition", {{"ngram_size", "2"}});
  RewardRows rows;
  rows.completions.resize(3);
  rows.num_ids = {5, 1, 2};  // ids are all the same
  EXPECT_EQ(plugin.score(rows), (std::vector<double>{-0.75, 0, 0}));
}

TEST(Overlong, SoftIsDapos) {
  auto plugin = reward("soft_overlong", {{"max_length", "100"}, {"buffer", "20"}});
  RewardRows rows;
  rows.completions.resize(5);
  rows.num_ids = {80, 81, 90, 100, 300};
  EXPECT_EQ(plugin.score(rows), (std::vector<double>{0, -1.0 / 20, -0.5, -1, -1}));
  auto scaled = reward("soft_overlong", {{"buffer", "20"}, {"factor", "0.5"}});
  rows.max_response_length = 100;
  EXPECT_EQ(scaled.score(rows), (std::vector<double>{0, -0.5 / 20, -0.25, -0.5, -0.5}));
  EXPECT_EQ(reward("soft_overlong").plugin.self, nullptr) << "buffer has no default";
  const RewardCall wide = reward("soft_overlong", {{"max_length", "10"}, {"buffer", "11"}});
  EXPECT_EQ(wide.plugin.status, MORTISE_INVALID_ARGUMENT);
  EXPECT_THAT(wide.plugin.call.error, HasSubstr("buffer: 11 is above max_length 10"));
  for (const char* name : {"soft_overlong", "hard_overlong"}) {
    std::map<std::string, std::string> none{{"max_length", "0"}};
    if (name[0] == 's') none["buffer"] = "1";
    EXPECT_EQ(reward(name, none).plugin.status, MORTISE_INVALID_ARGUMENT) << name;
  }
  rows.max_response_length = 0;
  EXPECT_TRUE(std::isnan(scaled.score(rows)[0]));
}

TEST(Overlong, HardIsForThoseAboveAndThoseCutOff) {
  auto plugin = reward("hard_overlong", {{"max_length", "10"}});
  RewardRows rows;
  rows.completions.resize(3);
  rows.num_ids = {9, 10, 11};
  EXPECT_EQ(plugin.score(rows), (std::vector<double>{0, 0, -1}));
  rows.finish_reason = {MORTISE_FINISH_STOP, MORTISE_FINISH_LENGTH, MORTISE_FINISH_STOP};
  EXPECT_EQ(plugin.score(rows), (std::vector<double>{0, -1, -1}));
}

TEST(LanguageConsistency, CountsWordsByScript) {
  auto english = reward("language_consistency");
  auto chinese = reward("language_consistency", {{"language", "zh"}});
  EXPECT_EQ(scores(english, {"all good words", "half 半句"})[0], 1);
  EXPECT_DOUBLE_EQ(scores(english, {"half 半句"})[0], 1.0 / 3);
  EXPECT_DOUBLE_EQ(scores(chinese, {"half 半句"})[0], 2.0 / 3);
  EXPECT_DOUBLE_EQ(scores(chinese, {"设 x 为 $n + solution$，答案是 `7`。"})[0], 1)
      << "variables and formulas do not count";
  EXPECT_DOUBLE_EQ(scores(chinese, {"代码\n```python\nprint(value)\n```"})[0], 1);
  auto all = reward("language_consistency", {{"language", "zh"}, {"skip_formulas", "false"}});
  EXPECT_DOUBLE_EQ(scores(all, {"代码 ```print```"})[0], 2.0 / 3);
  EXPECT_TRUE(std::isnan(scores(english, {"1 + 2 = 3"})[0])) << "no words";
  EXPECT_DOUBLE_EQ(scores(english, {"word \xff\xfe broken"})[0], 1);
  auto russian = reward("language_consistency", {{"language", "ru"}});
  EXPECT_DOUBLE_EQ(scores(russian, {"ответ есть three"})[0], 2.0 / 3);
}

TEST(LanguageConsistency, TheRowMaySayWhichLanguage) {
  auto plugin = reward("language_consistency", {{"column", "lang"}});
  const auto got = plugin.score({{"слово", "слово", "слово"}, {text("lang", {"ru", std::nullopt, "xx"})}, {}, {}, 0});
  EXPECT_EQ(got[0], 1);
  EXPECT_EQ(got[1], 0);
  EXPECT_TRUE(std::isnan(got[2]));
  EXPECT_THAT(plugin.plugin.call.failed_rows.at(2).text, HasSubstr("language 'xx' is not known"));
  EXPECT_EQ(reward("language_consistency", {{"language", "xx"}}).plugin.status, MORTISE_INVALID_ARGUMENT);
}

// TRL's own functions on random rows.
TEST(TextRewards, AgreeWithTrl) {
  const char* const python = std::getenv("MORTISE_ORACLES_PYTHON");
  if (python == nullptr || *python == '\0')
    GTEST_SKIP()
        << "MORTISE_ORACLES_PYTHON is not set: TRL did not judge think_format, soft_overlong and cosine's length";
  const TempDir dir;
  const auto script = dir.write("judge.py", R"(
import importlib.util, json, os, random, sys
import trl
def load(name):
    path = os.path.join(os.path.dirname(trl.__file__), "rewards", name + ".py")
    spec = importlib.util.spec_from_file_location("trl.rewards." + name, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
other, formats = load("other_rewards"), load("format_rewards")
random.seed(3)
soft, again = other.get_soft_overlong_punishment(40, 16), other.get_repetition_penalty_reward(2, -2.0)
pieces = ["<think>", "</think>", "a", "\n", " ", "<answer>"]
for _ in range(400):
    n = random.randrange(60)
    text = random.choice(["<think>", ""]) + "".join(random.choice(pieces) for _ in range(random.randrange(7)))
    print(json.dumps({"n": n, "text": text, "soft": soft([[65] * n])[0], "again": again([[65] * n])[0],
                      "think": formats.think_format_reward([[{"content": text}]])[0]}))
)");
  const std::string out = (dir / "rows.jsonl").string();
  ASSERT_EQ(std::system(("'" + std::string(python) + "' '" + script.string() + "' > '" + out + "'").c_str()), 0);
  auto soft = reward("soft_overlong", {{"max_length", "40"}, {"buffer", "16"}});
  auto again = reward("repetition", {{"ngram_size", "2"}, {"max_penalty", "-2"}});
  auto think = reward("think_format");
  std::ifstream file(out);
  int total = 0;
  for (std::string line; std::getline(file, line); ++total) {
    const auto c = nlohmann::json::parse(line);
    const RewardRows rows{{c["text"]}, {}, {c["n"].get<int64_t>()}, {}, 0};
    EXPECT_EQ(soft.score(rows)[0], c["soft"].get<double>()) << line;
    EXPECT_EQ(again.score(rows)[0], c["again"].get<double>()) << line;
    EXPECT_EQ(think.score(rows)[0], c["think"].get<double>()) << line;
  }
  EXPECT_EQ(total, 400);
}

}  // namespace
}  // namespace mortise::test
