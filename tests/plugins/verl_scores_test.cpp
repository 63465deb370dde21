// gsm8k, math_reward, math_dapo, search_r1 and default_compute_score against what verl 0.9.1's own functions say.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <fstream>
#include <memory>
#include <nlohmann/json.hpp>

#include "reward_call.h"

namespace mortise::test {
namespace {

using Json = nlohmann::json;
using testing::HasSubstr;

RewardCall verl_reward(const std::string& name, std::map<std::string, std::string> params = {}) {
  const std::string packs = std::string(MORTISE_BINARY_DIR) + "/lib/mortise/packs/";
  static const mortise_pack* plain = load_pack(packs + "mortise.reward.so");
  static const mortise_pack* math = load_pack(packs + "mortise.reward_math.so");
  const mortise_pack* pack = name == "default_compute_score" ? math : plain;
  return RewardCall(find_plugin(pack, MORTISE_KIND_REWARD, name), std::move(params));
}

TEST(VerlScores, AgreeWithVerlOnEveryCase) {
  std::map<std::string, std::unique_ptr<RewardCall>> scorers;
  const auto add = [&](const std::string& label, const std::string& name, std::map<std::string, std::string> params) {
    scorers[label].reset(new RewardCall(verl_reward(name, std::move(params))));
  };
  add("gsm8k", "gsm8k", {});
  add("gsm8k_flexible", "gsm8k", {{"method", "flexible"}, {"format_score", "0.25"}});
  add("math_reward", "math_reward", {});
  add("math_dapo", "math_dapo", {});
  add("math_dapo_alone", "math_dapo", {{"box", "alone"}});
  add("search_r1", "search_r1", {{"format_score", "0.1"}});
  add("search_r1_subem", "search_r1", {{"method", "subem"}, {"format_score", "0.1"}});
  std::ifstream file(std::string(MORTISE_SOURCE_DIR) + "/tests/golden/answers/verl.jsonl");
  int total = 0, different = 0;
  for (std::string line; std::getline(file, line); ++total) {
    const Json c = Json::parse(line);
    const RewardRows rows{{c["solution"]}, {text("answer", {c["truth"].get<std::string>()})}, {}, {}, 0};
    const double got = scorers.at(c["scorer"].get<std::string>())->score(rows)[0];
    if (got == c["expected"].get<double>()) continue;
    if (++different <= 8) ADD_FAILURE() << got << " for " << line;
  }
  EXPECT_EQ(total, 1609);
  EXPECT_EQ(different, 0);
}

// prime_math (numina_*) and geo3k (hiyouga/geometry3k); `sensible` where a reader says otherwise than verl.
TEST(VerlScores, AgreeWithVerlOrTheReaderOnMathematics) {
  auto plugin = verl_reward("default_compute_score");
  std::ifstream file(std::string(MORTISE_SOURCE_DIR) + "/tests/golden/answers/verl_math.jsonl");
  int total = 0, different = 0, decided = 0;
  for (std::string line; std::getline(file, line); ++total) {
    const Json c = Json::parse(line);
    const bool geometry = c["scorer"] == "geo3k";
    const RewardRows rows{{c["solution"]},
                          {text("data_source", {geometry ? "hiyouga/geometry3k" : "numina_olympiads"}),
                           text("answer", {c["truth"].get<std::string>()})},
                          {},
                          {},
                          0};
    decided += c.contains("sensible") ? 1 : 0;
    const double want = c.value("sensible", c["expected"].get<double>());
    if (std::abs(plugin.score(rows)[0] - want) < 1e-9) continue;
    if (++different <= 8) ADD_FAILURE() << plugin.score(rows)[0] << " for " << line;
  }
  EXPECT_EQ(total, 938);
  EXPECT_EQ(decided, 95);
  EXPECT_EQ(different, 0);
}

TEST(VerlScores, TheScorerGoesByTheDataSource) {
  auto plugin = verl_reward("default_compute_score");
  const RewardRows rows{
      {"#### 42", "\\boxed{42}", "Answer: 42", "Answer: 41", "42", "42"},
      {text("data_source", {"openai/gsm8k", "lighteval/MATH", "math_dapo", "aime_2024", "unheard/of", std::nullopt}),
       text("answer", {"42", "42", "42", "42", "42", "42"})},
      {},
      {},
      0};
  const std::vector<double> got = plugin.score(rows);
  EXPECT_EQ((std::vector<double>(got.begin(), got.begin() + 4)), (std::vector<double>{1, 1, 1, -1}));
  EXPECT_TRUE(std::isnan(got[4]) && std::isnan(got[5]));
  EXPECT_THAT(plugin.plugin.call.failed_rows.at(4).text, HasSubstr("'unheard/of' has no scorer here"));
  EXPECT_EQ(plugin.plugin.call.failed_rows.count(5), 0U);
  EXPECT_EQ(plugin.values["acc"], (std::map<int64_t, double>{{2, 1}, {3, 0}}));
}

TEST(VerlScores, TheTruthIsWhereVerlsDataHasIt) {
  auto plugin = verl_reward("gsm8k");
  const TestColumn nested{
      "reward_model", MORTISE_COLUMN_JSON, {R"({"ground_truth": "7"})", R"({"style": "rule"})"}, {}};
  const std::vector<double> got = plugin.score({{"#### 7", "#### 7"}, {nested}, {}, {}, 0});
  EXPECT_EQ(got[0], 1);
  EXPECT_TRUE(std::isnan(got[1]));
}

TEST(VerlScores, BeforeTheBoxWasAFallback) {
  auto newer = verl_reward("math_dapo");
  auto older = verl_reward("math_dapo", {{"box", "never"}});
  const RewardRows rows{{"\\boxed{42}"}, {text("answer", {"42"})}, {}, {}, 0};
  EXPECT_EQ(newer.score(rows)[0], 1);
  EXPECT_EQ(older.score(rows)[0], -1);
}

// What default_compute_score says of one completion.
double scored(const std::string& source, const std::string& completion, const std::string& truth) {
  static RewardCall plugin = verl_reward("default_compute_score");
  return plugin.score({{completion}, {text("data_source", {source}), text("answer", {truth})}, {}, {}, 0})[0];
}

// verl's search_r1_like_qa_em, case by case.
TEST(VerlScores, SearchR1ComparesTheAnswerInTags) {
  const auto score = [](const std::string& completion, const std::string& truths, const std::string& method = "em") {
    auto plugin = verl_reward("search_r1", {{"method", method}, {"format_score", "0.1"}});
    return plugin.score({{completion}, {TestColumn{"ground_truth", MORTISE_COLUMN_JSON, {truths}, {}}}, {}, {}, 0})[0];
  };
  const std::string one = R"({"target": "The Beatles"})", several = R"({"target": ["U.S.A.", "Élan Vital"]})";
  EXPECT_EQ(score("<answer> beatles!</answer>", one), 1);
  EXPECT_EQ(score("<answer>the  BEATLES, a an</answer>", one), 1);
  EXPECT_EQ(score("<answer>Beatles</answer> or <answer>Queen</answer>", one), 0.1) << "the last counts";
  EXPECT_EQ(score("<answer>Queen</answer> <answer>Beatles", one), 0.1) << "what is not closed does not";
  EXPECT_EQ(score("Beatles", one), 0);
  EXPECT_EQ(score("<answer>usa</answer>", several), 1);
  EXPECT_EQ(score("<answer>ÉLAN\nvital</answer>", several), 1);
  EXPECT_EQ(score("<answer>anthem</answer>", R"(["them"])"), 0.1) << "an article is a word";
  EXPECT_EQ(score("<answer>it was the Beatles</answer>", one), 0.1);
  EXPECT_EQ(score("<answer>it was the Beatles</answer>", one, "subem"), 1);
  std::string many;
  for (int i = 0; i < 11; ++i) many += "<answer>beatles</answer>";
  EXPECT_EQ(score(many, one), 0.25);
  EXPECT_EQ(score(many, one, "subem"), 1);
  EXPECT_EQ(scored("searchR1_bamboogle", many, "beatles"), 0.25);
  EXPECT_EQ(scored("searchR1_nq", "<answer>42</answer>", "41"), 0);
}

// 0.9 accuracy + 0.1 format; mathruler's grade_answer keeps fractions and integers in their form.
TEST(VerlScores, Geometry3kAddsTheFormatToTheAnswer) {
  const auto score = [](const std::string& completion, const std::string& truth) {
    return scored("hiyouga/geometry3k", completion, truth);
  };
  EXPECT_DOUBLE_EQ(score("<think>a</think> so \\boxed{ 42 }.", "42"), 1.0);
  EXPECT_DOUBLE_EQ(score("so \\boxed{42}", "42"), 0.9);
  EXPECT_DOUBLE_EQ(score(" <think>a</think>\\boxed{42}", "42"), 0.9) << "begins with a space";
  EXPECT_DOUBLE_EQ(score("<think>\\boxed{42}</think>", "42"), 0.9) << "the box stands in the thought";
  EXPECT_DOUBLE_EQ(score("<think>a</think>\\boxed{41}", "42"), 0.1);
  EXPECT_DOUBLE_EQ(score("<think>a</think> 42", "42"), 0.0) << "no box";
  EXPECT_DOUBLE_EQ(score("\\boxed{42} no, \\boxed{7}", "42"), 0.0);
  EXPECT_DOUBLE_EQ(score("\\boxed{2\\sqrt{3}}", "\\sqrt{12}"), 0.9);
  EXPECT_DOUBLE_EQ(score("\\boxed{\\frac{2}{4}}", "\\frac{1}{2}"), 0.0) << "not reduced";
  EXPECT_DOUBLE_EQ(score("\\boxed{\\dfrac12}", "1/2"), 0.9);
  EXPECT_DOUBLE_EQ(score("\\boxed{\\frac{-3}{-8}}", "\\frac{3}{8}"), 0.9) << "a sign below the line is computed";
  EXPECT_DOUBLE_EQ(score("\\boxed{\\frac{2}{-5}}", "-\\frac{2}{5}"), 0.9);
  EXPECT_DOUBLE_EQ(score("\\boxed{\\frac{-2}{5}}", "-\\frac{2}{5}"), 0.9);
  EXPECT_DOUBLE_EQ(score("\\boxed{\\sqrt{4}}", "2"), 0.0) << "an integer is written as one";
  EXPECT_DOUBLE_EQ(score("\\boxed{42.0}", "42"), 0.9);
  EXPECT_DOUBLE_EQ(score("\\boxed{(1, \\sqrt{9})}", "(1, 3)"), 0.0);
  EXPECT_DOUBLE_EQ(score("\\boxed{\\text{yes}}", "yes"), 0.9);
}

// Where the answer comes from, and which unequal numbers pass.
TEST(VerlScores, NuminaTakesTheAnswerAsPrimeMathDoes) {
  const auto right = [](const std::string& completion, const std::string& truth) {
    const double score = scored("numina_olympiads", completion, truth);
    EXPECT_TRUE(score == 0 || score == 1) << score;
    return score == 1;
  };
  EXPECT_TRUE(right("Step 2: \\boxed{42}", "42"));
  EXPECT_TRUE(right("The answer is 42", "42"));
  EXPECT_TRUE(right("ANSWER: x = 42", "42"));
  EXPECT_TRUE(right("42 is the answer", "42"));
  EXPECT_TRUE(right("so we get 42. That was easy", "42"));
  EXPECT_TRUE(right("the lengths are\n42", "42"));
  EXPECT_TRUE(right("\\boxed{41} but the answer is \\boxed{42}", "42"));
  EXPECT_FALSE(right("the answer is \\boxed{42} but then \\boxed{41}", "42"));
  EXPECT_FALSE(right("nothing", "42"));
  EXPECT_TRUE(right("\\boxed{42", "42")) << "a box that is cut off";
  EXPECT_FALSE(right("thus \\boxed{42", "41"));
  EXPECT_TRUE(right("\\boxed{\\frac{2}{4}}", "\\frac{1}{2}")) << "prime_math computes";
  EXPECT_TRUE(right("\\boxed{\\text{yes}}", "yes"));
  EXPECT_TRUE(right("\\boxed{1,234.05}", "1234")) << "to 1e-4";
  EXPECT_FALSE(right("\\boxed{1,234.5}", "1234"));
  EXPECT_TRUE(right("\\boxed{0.25}", "25\\%")) << "a hundredth";
  EXPECT_TRUE(right("\\boxed{2500}", "25")) << "a hundredfold";
  EXPECT_FALSE(right("\\boxed{250}", "25"));
  EXPECT_TRUE(right("\\boxed{31.4}", "10\\pi")) << "pi may be 3.14";
  EXPECT_TRUE(right("\\boxed{31.416}", "10\\pi"));
  EXPECT_FALSE(right("\\boxed{31.6}", "10\\pi"));
  EXPECT_TRUE(right("\\boxed{1.7320}", "\\sqrt{3}"));
  EXPECT_TRUE(right("\\boxed{(1, 0.33333)}", "(1, \\frac{1}{3})"));
  for (const char* source : {"numina_aops_forum", "numina_synthetic_math", "numina_amc_aime", "numina_synthetic_amc",
                             "numina_cn_k12", "numina_olympiads"})
    EXPECT_EQ(scored(source, "\\boxed{7}", "7"), 1) << source;
  EXPECT_TRUE(std::isnan(scored("numina_other", "\\boxed{7}", "7")));
}

}  // namespace
}  // namespace mortise::test
