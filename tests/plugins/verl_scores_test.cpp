// gsm8k, math_reward, math_dapo and default_compute_score against what verl 0.9.1's own functions say.
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

RewardCall reward(const std::string& name, std::map<std::string, std::string> params = {}) {
  static const mortise_pack* pack = load_pack(std::string(MORTISE_BINARY_DIR) + "/lib/mortise/packs/mortise.reward.so");
  return RewardCall(find_plugin(pack, MORTISE_KIND_REWARD, name), std::move(params));
}

TestColumn text(const std::string& name, std::vector<std::optional<std::string>> cells) {
  return {name, MORTISE_COLUMN_TEXT, std::move(cells), {}};
}

TEST(VerlScores, AgreeWithVerlOnEveryCase) {
  std::map<std::string, std::unique_ptr<RewardCall>> scorers;
  const auto add = [&](const std::string& label, const std::string& name, std::map<std::string, std::string> params) {
    scorers[label].reset(new RewardCall(reward(name, std::move(params))));
  };
  add("gsm8k", "gsm8k", {});
  add("gsm8k_flexible", "gsm8k", {{"method", "flexible"}, {"format_score", "0.25"}});
  add("math_reward", "math_reward", {});
  add("math_dapo", "math_dapo", {});
  add("math_dapo_alone", "math_dapo", {{"box", "alone"}});
  std::ifstream file(std::string(MORTISE_SOURCE_DIR) + "/tests/golden/answers/verl.jsonl");
  int total = 0, different = 0;
  for (std::string line; std::getline(file, line); ++total) {
    const Json c = Json::parse(line);
    const RewardRows rows{{c["solution"]}, {text("answer", {c["truth"].get<std::string>()})}, {}, {}, 0};
    const double got = scorers.at(c["scorer"].get<std::string>())->score(rows)[0];
    if (got == c["expected"].get<double>()) continue;
    if (++different <= 8) ADD_FAILURE() << got << " for " << line;
  }
  EXPECT_EQ(total, 1009);
  EXPECT_EQ(different, 0);
}

TEST(VerlScores, TheScorerGoesByTheDataSource) {
  auto plugin = reward("default_compute_score");
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
  auto plugin = reward("gsm8k");
  const TestColumn nested{
      "reward_model", MORTISE_COLUMN_JSON, {R"({"ground_truth": "7"})", R"({"style": "rule"})"}, {}};
  const std::vector<double> got = plugin.score({{"#### 7", "#### 7"}, {nested}, {}, {}, 0});
  EXPECT_EQ(got[0], 1);
  EXPECT_TRUE(std::isnan(got[1]));
}

TEST(VerlScores, BeforeTheBoxWasAFallback) {
  auto newer = reward("math_dapo");
  auto older = reward("math_dapo", {{"box", "never"}});
  const RewardRows rows{{"\\boxed{42}"}, {text("answer", {"42"})}, {}, {}, 0};
  EXPECT_EQ(newer.score(rows)[0], 1);
  EXPECT_EQ(older.score(rows)[0], -1);
}

}  // namespace
}  // namespace mortise::test
