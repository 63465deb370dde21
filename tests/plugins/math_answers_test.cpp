// math_equal and cosine as the host loads them: the answer pairs of tests/golden/answers, where the answer is found,
// and the result for a row without one.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <fstream>
#include <nlohmann/json.hpp>

#include "reward_call.h"

namespace mortise::test {
namespace {

using Json = nlohmann::json;

RewardCall reward(const std::string& name, std::map<std::string, std::string> params = {}) {
  static const mortise_pack* pack =
      load_pack(std::string(MORTISE_BINARY_DIR) + "/lib/mortise/packs/mortise.reward_math.so");
  return RewardCall(find_plugin(pack, MORTISE_KIND_REWARD, name), std::move(params));
}

TestColumn text(std::vector<std::optional<std::string>> cells) {
  return {"answer", MORTISE_COLUMN_TEXT, std::move(cells), {}};
}

std::vector<Json> lines(const std::string& name) {
  std::ifstream file(std::string(MORTISE_SOURCE_DIR) + "/tests/golden/answers/" + name);
  std::vector<Json> out;
  for (std::string line; std::getline(file, line);) out.push_back(Json::parse(line));
  return out;
}

// One call with all pairs. Returns the pairs whose reward is not `expected`.
std::vector<std::string> wrong(const std::vector<Json>& cases, const char* expected) {
  RewardRows rows;
  std::vector<std::optional<std::string>> golds;
  for (const Json& c : cases) {
    rows.completions.push_back(c["prediction"]);
    golds.emplace_back(c["gold"].get<std::string>());
  }
  rows.columns = {text(golds)};
  auto plugin = reward("math_equal");
  const std::vector<double> got = plugin.score(rows);
  EXPECT_EQ(plugin.status, MORTISE_OK);
  std::vector<std::string> out;
  for (size_t i = 0; i < cases.size(); ++i) {
    if (got[i] != (cases[i][expected].get<bool>() ? 1.0 : 0.0)) out.push_back(cases[i].dump().substr(0, 300));
  }
  return out;
}

TEST(MathEqual, AgreesWithMathVerifyOnEveryCase) {
  const std::vector<Json> cases = lines("cases.jsonl");
  EXPECT_EQ(cases.size(), 500U);
  EXPECT_THAT(wrong(cases, "expected"), testing::IsEmpty());
}

TEST(MathEqual, AgreesWithTheReaderOnTheQuestionableOnes) {
  const std::vector<Json> cases = lines("questionable.jsonl");
  EXPECT_EQ(cases.size(), 13U);
  EXPECT_THAT(wrong(cases, "sensible"), testing::IsEmpty());
}

// Pairs of every form that the reward reads, written to break it.
TEST(MathEqual, AgreesWithTheReaderOnPairsOfEveryForm) {
  const std::vector<Json> cases = lines("pairs.jsonl");
  EXPECT_GT(cases.size(), 1100U);
  EXPECT_THAT(wrong(cases, "sensible"), testing::IsEmpty());
}

double score(RewardCall& plugin, const std::string& completion, const std::string& gold) {
  return plugin.score({{completion}, {text({gold})}, {}, {}, 0})[0];
}

TEST(MathEqual, BoxedWantsABox) {
  auto any = reward("math_equal");
  auto boxed = reward("math_equal", {{"extract", "boxed"}});
  EXPECT_EQ(score(any, "The answer is 42.", "42"), 1);
  EXPECT_EQ(score(boxed, "The answer is 42.", "42"), 0);
  EXPECT_EQ(score(boxed, "The answer is \\boxed{42}.", "42"), 1);
}

TEST(MathEqual, OnlyWhatStandsBehindTheMarkIsRead) {
  auto plugin = reward("math_equal", {{"after", "</think>"}, {"hit", "2"}, {"miss", "-1"}});
  EXPECT_EQ(score(plugin, "\\boxed{42}", "42"), -1) << "TRL's reasoning_accuracy_reward: no mark, no answer";
  EXPECT_EQ(score(plugin, "\\boxed{17}</think>\\boxed{42}", "42"), 2);
  EXPECT_EQ(score(plugin, "\\boxed{42}</think>\\boxed{17}", "42"), -1);
}

TEST(MathEqual, ReasoningIsNotTheAnswer) {
  auto plugin = reward("math_equal");
  EXPECT_EQ(score(plugin, "<think>\\boxed{42}</think>The answer is 17.", "42"), 0);
  EXPECT_EQ(score(plugin, "<think>\\boxed{17}</think>The answer is 42.", "42"), 1);
}

TEST(MathEqual, BoxesThatBelongTogetherAreOneAnswer) {
  auto plugin = reward("math_equal");
  EXPECT_EQ(score(plugin, "so $\\boxed{3}$ or $\\boxed{-2}$.", "-2, 3"), 1);
  EXPECT_EQ(score(plugin, "so $\\boxed{3}$ or $\\boxed{-2}$.", "-2"), 0);
  EXPECT_EQ(score(plugin, "first $\\boxed{3}$, which is wrong, then $\\boxed{-2}$.", "-2"), 1);
}

TEST(MathEqual, GoldsAreListsSolutionsAndNumbers) {
  auto plugin = reward("math_equal");
  const TestColumn list{"answer", MORTISE_COLUMN_JSON, {R"(["\\frac{1}{2}", 7])", R"(["1", "2"])"}, {}};
  EXPECT_EQ(plugin.score({{"\\boxed{0.5}", "\\boxed{3}"}, {list}, {}, {}, 0}), (std::vector<double>{1, 0}));
  EXPECT_EQ(score(plugin, "42", "She has 40 + 2 = <<40+2=42>>42 eggs.\n#### 42"), 1);
  EXPECT_EQ(score(plugin, "42", "Thus $x = \\boxed{42}$."), 1);
  EXPECT_EQ(plugin.score({{"7"}, {{"answer", MORTISE_COLUMN_I64, {}, {7}}}, {}, {}, 0})[0], 1);
}

TEST(MathEqual, ARowWithoutAnAnswerIsLeftAlone) {
  auto plugin = reward("math_equal");
  EXPECT_TRUE(std::isnan(plugin.score({{"42"}, {text({std::nullopt})}, {}, {}, 0})[0]));
  EXPECT_EQ(score(plugin, "I do not know", "42"), 0);
  EXPECT_EQ(score(plugin, "", "42"), 0);
  EXPECT_EQ(plugin.values["math/no_answer"][0], 1);
}

// A right answer that is no mathematics: TRL skips the row, ms-swift counts it as wrong.
TEST(MathEqual, AnUnreadableGoldIsTextSkippedOrMissed) {
  auto text_of = reward("math_equal");
  EXPECT_EQ(score(text_of, "\\boxed{yes}", "yes"), 1);
  EXPECT_EQ(score(text_of, "\\boxed{no}", "yes"), 0);
  auto skip = reward("math_equal", {{"on_unreadable_gold", "skip"}});
  EXPECT_TRUE(std::isnan(score(skip, "\\boxed{yes}", "yes")));
  EXPECT_EQ(skip.values["math/unreadable_gold"][0], 1);
  EXPECT_TRUE(std::isnan(score(skip, "\\boxed{1}", "1 +* ?")));
  EXPECT_EQ(score(skip, "\\boxed{\\sqrt{2}}", "\\sqrt{2}"), 1) << "readable here";
  auto miss = reward("math_equal", {{"on_unreadable_gold", "miss"}, {"miss", "-1"}});
  EXPECT_EQ(score(miss, "\\boxed{yes}", "yes"), -1);
  auto scaled = reward("cosine", {{"on_unreadable_gold", "skip"}, {"max_length", "8"}});
  EXPECT_TRUE(std::isnan(score(scaled, "\\boxed{yes}", "yes")));
}

// TRL's accuracy_reward and reasoning_accuracy_reward as `config import` writes them; what TRL 1.16 gives with
// math-verify 0.9.
TEST(MathEqual, FindsWhatTrlFinds) {
  const std::map<std::string, std::string> trl{
      {"extract", "marked"}, {"gold", "marked"}, {"on_unreadable_gold", "skip"}};
  auto plugin = reward("math_equal", trl);
  EXPECT_EQ(score(plugin, "My answer is \\boxed{\\frac{1}{3}}", "\\frac{1}{3}"), 1);
  EXPECT_EQ(score(plugin, "The final answer is $\\frac{1}{3}$.", "$\\frac{1}{3}$"), 1);
  EXPECT_EQ(score(plugin, "The answer is 42.", "42"), 0) << "not in a formula";
  EXPECT_EQ(score(plugin, "So we get $42$.", "42"), 0) << "nothing announces it";
  for (const char* skipped : {"yes", "A", "\\sqrt{2}", "x+1", ""})
    EXPECT_TRUE(std::isnan(score(plugin, "\\boxed{1}", skipped))) << skipped;
  EXPECT_EQ(score(plugin, "\\boxed{\\sqrt{2}}", "$\\sqrt{2}$"), 1);
  EXPECT_EQ(score(plugin, "\\boxed{12\\pi}", "the area is $12\\pi$ units"), 1) << "found in prose";
  auto after = trl;
  after["after"] = "</think>";
  auto reasoning = reward("math_equal", after);
  EXPECT_EQ(score(reasoning, "\\boxed{1}", "yes"), 0) << "unfinished reasoning is wrong even then";
  EXPECT_TRUE(std::isnan(score(reasoning, "</think>\\boxed{1}", "yes")));
}

// ms-swift's accuracy as `config import` writes it.
TEST(MathEqual, FindsWhatSwiftFinds) {
  auto plugin = reward("math_equal",
                       {{"extract", "marked"}, {"tag", "answer"}, {"gold", "marked"}, {"on_unreadable_gold", "miss"}});
  EXPECT_EQ(score(plugin, "<think>$1$</think><answer>\\frac{1}{2}</answer>", "0.5"), 1);
  EXPECT_EQ(score(plugin, "<answer> 42 </answer> and \\boxed{7}", "<answer>42</answer>"), 1);
  EXPECT_EQ(score(plugin, "<answer>41</answer> <answer>42</answer>", "42"), 0) << "the first";
  EXPECT_EQ(score(plugin, "<answer>42", "42"), 0) << "no tag, and nothing marked";
  EXPECT_EQ(score(plugin, "thus \\boxed{42}", "42"), 1);
  EXPECT_EQ(score(plugin, "<answer>yes</answer>", "yes"), 0);
}

TEST(MathEqual, PlacesAreThoseOfDecimals) {
  auto six = reward("math_equal");
  auto two = reward("math_equal", {{"places", "2"}});
  EXPECT_EQ(score(six, "\\boxed{0.333333}", "\\frac{1}{3}"), 1);
  EXPECT_EQ(score(six, "\\boxed{0.33}", "\\frac{1}{3}"), 0);
  EXPECT_EQ(score(two, "\\boxed{0.33}", "\\frac{1}{3}"), 1);
  EXPECT_EQ(score(six, "\\boxed{0.0000001}", "0.0000002"), 0) << "two digits of a small number count";
}

// TRL 1.16's own example, and both ends of both curves.
TEST(Cosine, IsTrls) {
  auto plugin = reward("cosine", {{"max_length", "100"}});
  RewardRows rows{
      {"\\boxed{\\frac{1}{3}}", "\\boxed{\\frac{1}{2}}", "\\boxed{\\frac{1}{3}}", "\\boxed{\\frac{1}{2}}", "x"},
      {text({"\\frac{1}{3}", "\\frac{1}{3}", "\\frac{1}{3}", "\\frac{1}{3}", std::nullopt})},
      {50, 50, 150, 150, 1},
      {},
      0};
  const std::vector<double> got = plugin.score(rows);
  EXPECT_NEAR(got[0], 0.75, 1e-12);
  EXPECT_NEAR(got[1], -0.75, 1e-12);
  EXPECT_NEAR(got[2], 0.5, 1e-12) << "longer than max_length stays at the end";
  EXPECT_NEAR(got[3], -0.5, 1e-12);
  EXPECT_TRUE(std::isnan(got[4]));
  EXPECT_EQ(reward("cosine", {{"max_length", "0"}}).plugin.status, MORTISE_INVALID_ARGUMENT);
  rows.num_ids = {0, 0, 25, 25, 1};
  const std::vector<double> early = plugin.score(rows);
  EXPECT_NEAR(early[0], 1, 1e-12);
  EXPECT_NEAR(early[1], -1, 1e-12);
  EXPECT_NEAR(early[2], 0.5 + 0.25 * (1 + std::sqrt(0.5)), 1e-12);
  EXPECT_NEAR(early[3], -0.5 - 0.25 * (1 + std::sqrt(0.5)), 1e-12);
}

// swift: f(t) = max - (max - min) (1 - cos(pi t / T)) / 2 from 1 to 0.5 when right, -0.5 to 0 when wrong.
TEST(Cosine, IsSwiftsWithItsNumbers) {
  auto plugin = reward("cosine", {{"wrong_start", "-0.5"}, {"wrong_end", "0"}});
  for (const int64_t t : {0, 10, 33, 64}) {
    const double shape = (1 - std::cos(M_PI * double(t) / 64)) / 2;
    const auto got = plugin.score({{"\\boxed{1}", "\\boxed{2}"}, {text({"1", "1"})}, {t, t}, {}, 64});
    EXPECT_NEAR(got[0], 1 - 0.5 * shape, 1e-12) << t;
    EXPECT_NEAR(got[1], -0.5 + 0.5 * shape, 1e-12) << t;
  }
  EXPECT_TRUE(std::isnan(plugin.score({{"1"}, {text({"1"})}, {1}, {}, 0})[0])) << "no length to scale by";
}

}  // namespace
}  // namespace mortise::test
