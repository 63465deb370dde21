// exact_match, regex, length, column: what they score, when they do not apply, and how they fail.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "reward_call.h"

namespace mortise::test {
namespace {

using testing::HasSubstr;

RewardCall reward(const std::string& name, std::map<std::string, std::string> params = {}) {
  static const mortise_pack* pack = load_pack(std::string(MORTISE_BINARY_DIR) + "/lib/mortise/packs/mortise.reward.so");
  return RewardCall(find_plugin(pack, MORTISE_KIND_REWARD, name), std::move(params));
}

TEST(ExactMatch, StripsAndLeavesRowsWithoutAnAnswerAlone) {
  auto plugin = reward("exact_match");
  const RewardRows rows{
      {" 42\n", "43", "x", "42", ""}, {text("answer", {"42", "42", std::nullopt, "42 ", ""})}, {}, {}, 0};
  EXPECT_EQ(shown(plugin.score(rows)), (std::vector<double>{1, 0, -99, 1, 1}));
  EXPECT_TRUE(plugin.plugin.call.failed_rows.empty());
}

TEST(ExactMatch, WithoutStripEveryByteCounts) {
  auto plugin = reward("exact_match", {{"strip", "false"}, {"hit", "2"}, {"miss", "-1"}, {"column", "gold"}});
  EXPECT_EQ(plugin.score({{"42", "42 "}, {text("gold", {"42", "42"})}, {}, {}, 0}), (std::vector<double>{2, -1}));
}

TEST(ExactMatch, NumbersListsAndNestedPaths) {
  auto numbers = reward("exact_match");
  EXPECT_EQ(numbers.score({{"7", "8"}, {{"answer", MORTISE_COLUMN_I64, {}, {7, 7}}}, {}, {}, 0}),
            (std::vector<double>{1, 0}));
  auto nested = reward("exact_match", {{"column", "reward_model.ground_truth"}, {"ignore_case", "true"}});
  const RewardRows rows{{"yes", "Yes", "no", "no"},
                        {json("reward_model", {R"({"ground_truth": "YES"})", R"({"ground_truth": ["no", "yes"]})",
                                               R"({"style": "rule"})", R"({"ground_truth": null})"})},
                        {},
                        {},
                        0};
  EXPECT_EQ(shown(nested.score(rows)), (std::vector<double>{1, 1, -99, -99}));
}

TEST(ExactMatch, DamagedJsonFailsItsRowAlone) {
  auto plugin = reward("exact_match", {{"column", "meta.answer"}});
  const auto got = plugin.score({{"1", "1"}, {json("meta", {"{broken", R"({"answer": 1})"})}, {}, {}, 0});
  EXPECT_EQ(plugin.status, MORTISE_OK);
  EXPECT_EQ(shown(got), (std::vector<double>{-99, 1}));
  EXPECT_THAT(plugin.plugin.call.failed_rows.at(0).text, HasSubstr("'meta' is not valid JSON"));
}

TEST(ExactMatch, DeeplyNestedJsonFailsItsRowAlone) {
  auto plugin = reward("exact_match", {{"column", "meta.answer"}});
  const std::string deep = R"({"answer": )" + std::string(300'000, '[') + std::string(300'000, ']') + "}";
  const auto got = plugin.score({{"1", "1"}, {json("meta", {deep, R"({"answer": 1})"})}, {}, {}, 0});
  EXPECT_EQ(shown(got), (std::vector<double>{-99, 1}));
  EXPECT_THAT(plugin.plugin.call.failed_rows.at(0).text, HasSubstr("nested deeper than 128 levels"));
}

TEST(Regex, SearchesAndMatchesWhole) {
  auto search = reward("regex", {{"pattern", "<think>.*</think>"}});
  EXPECT_EQ(search.score({{"a <think>x\ny</think> b", "<think>"}, {}, {}, {}, 0}), (std::vector<double>{1, 0}));
  auto whole = reward("regex", {{"pattern", "[a-z]+"}, {"full", "true"}, {"miss", "-0.5"}});
  EXPECT_EQ(whole.score({{"abc", "abc1"}, {}, {}, {}, 0}), (std::vector<double>{1, -0.5}));
  auto folded = reward("regex", {{"pattern", "äB"}, {"ignore_case", "true"}});
  EXPECT_EQ(folded.score({{"ÄbC", "a"}, {}, {}, {}, 0}), (std::vector<double>{1, 0}));
}

TEST(Regex, LastCaptureAgainstAColumn) {
  auto plugin = reward("regex", {{"pattern", R"(answer:\s*(-?\d+))"}, {"column", "answer"}});
  const RewardRows rows{{"answer: 1, no, answer: 12", "answer: 12 then answer: 1", "12", "answer: 5"},
                        {text("answer", {"12", "12", "12", std::nullopt})},
                        {},
                        {},
                        0};
  EXPECT_EQ(shown(plugin.score(rows)), (std::vector<double>{1, 0, 0, -99}));
}

TEST(Regex, EmptyMatchesEndTheSearch) {
  auto plugin = reward("regex", {{"pattern", "(x*)"}, {"column", "answer"}});
  EXPECT_EQ(plugin.score({{"äx", "xx"}, {text("answer", {"", "xx"})}, {}, {}, 0}), (std::vector<double>{1, 0}));
}

TEST(Regex, BadPatternsAreRefusedWithTheirPlace) {
  auto open = reward("regex", {{"pattern", "a(b"}});
  EXPECT_EQ(open.plugin.status, MORTISE_INVALID_ARGUMENT);
  EXPECT_THAT(open.plugin.call.error, HasSubstr("'a(b' at character 3"));
  auto group = reward("regex", {{"pattern", "a"}, {"column", "answer"}});
  EXPECT_THAT(group.plugin.call.error, HasSubstr("has 0 captures"));
  auto missing = reward("regex");
  EXPECT_THAT(missing.plugin.call.error, HasSubstr("'pattern'"));
}

TEST(Regex, RunawayPatternsAndBrokenUtf8FailTheirRowAlone) {
  auto plugin = reward("regex", {{"pattern", "^(a+)+$"}, {"match_limit", "1000"}});
  const auto got = plugin.score({{std::string(64, 'a') + "b", "\xff\xfe", "aaa"}, {}, {}, {}, 0});
  EXPECT_EQ(shown(got), (std::vector<double>{-99, -99, 1}));
  EXPECT_EQ(plugin.plugin.call.failed_rows.size(), 2U);
}

// The JIT's default stack ends near 8,000 characters of the first pattern and 2,000 of the second.
TEST(Regex, LongCompletionsAreScoredRight) {
  for (const char* pattern : {"^<think>(?:(?!</think>).)*</think>", "^<think>(.|\\n)*?</think>$"}) {
    auto plugin = reward("regex", {{"pattern", pattern}});
    for (const size_t size : {size_t{2'000}, size_t{10'000}, size_t{1} << 20}) {
      const std::string inside(size, 'a');
      const auto got = plugin.score({{"<think>" + inside + "</think>", "<think>" + inside, "x"}, {}, {}, {}, 0});
      EXPECT_EQ(shown(got), (std::vector<double>{1, 0, 0})) << pattern << " " << size;
      EXPECT_TRUE(plugin.plugin.call.failed_rows.empty());
    }
  }
}

TEST(Regex, BacktrackingWithoutEndGivesNoRewardAndTheReason) {
  auto plugin = reward("regex", {{"pattern", "(a+)+$"}});
  const auto got = plugin.score({{std::string(5'000, 'a') + "!", "aa"}, {}, {}, {}, 0});
  EXPECT_EQ(shown(got), (std::vector<double>{-99, 1}));
  EXPECT_THAT(plugin.plugin.call.failed_rows.at(0).text, HasSubstr("takes more than 10000000 steps"));
}

TEST(Length, LinearBetweenTargetAndLimit) {
  auto plugin = reward("length", {{"target", "4"}, {"limit", "8"}});
  RewardRows rows;
  rows.num_ids = {1, 4, 5, 6, 8, 20};
  rows.completions.resize(6);
  EXPECT_EQ(plugin.score(rows), (std::vector<double>{0, 0, -0.25, -0.5, -1, -1}));
}

TEST(Length, BufferIsDaposOverlongPunishment) {
  auto plugin = reward("length", {{"buffer", "4"}, {"penalty", "-2"}});
  RewardRows rows;
  rows.num_ids = {12, 13, 16};
  rows.completions.resize(3);
  rows.max_response_length = 16;
  EXPECT_EQ(plugin.score(rows), (std::vector<double>{0, -0.5, -2}));
  rows.max_response_length = 0;
  EXPECT_EQ(shown(plugin.score(rows)), (std::vector<double>{-99, -99, -99}));
  EXPECT_THAT(plugin.plugin.call.failed_rows.at(0).text, HasSubstr("limit is not set"));
  auto wrong = reward("length", {{"target", "9"}, {"limit", "8"}});
  EXPECT_EQ(wrong.plugin.status, MORTISE_INVALID_ARGUMENT);
  const RewardCall none = reward("length", {{"limit", "0"}});
  EXPECT_EQ(none.plugin.status, MORTISE_INVALID_ARGUMENT);
  EXPECT_THAT(none.plugin.call.error, HasSubstr("limit: 0 tokens punish everything"));
}

TEST(Column, NumbersListsAndNull) {
  auto plugin = reward("column", {{"key", "scores"}});
  const RewardRows rows{{"", "", "", "", ""},
                        {json("scores", {"[0.25, null, 2]", "[0.25, null, 2]", "1.5", "[0.5]", R"(["x"])"})},
                        {},
                        {2, 1, 3, 1, 0},
                        0};
  EXPECT_EQ(shown(plugin.score(rows)), (std::vector<double>{2, -99, 1.5, -99, -99}));
  const auto& failed = plugin.plugin.call.failed_rows;
  ASSERT_EQ(failed.size(), 2U) << "null is not a failure; a short list and a text are";
  EXPECT_THAT(failed.at(3).text, HasSubstr("has 1 entries, but this is sample 1"));
  EXPECT_THAT(failed.at(4).text, HasSubstr("not a number"));
}

TEST(Column, PlainNumberColumnsAndMissingOnes) {
  auto plugin = reward("column");
  EXPECT_EQ(shown(plugin.score({{"", ""}, {{"score", MORTISE_COLUMN_F64, {}, {0.5, std::nullopt}}}, {}, {}, 0})),
            (std::vector<double>{0.5, -99}));
  EXPECT_EQ(shown(plugin.score({{"", ""}, {}, {}, {}, 0})), (std::vector<double>{-99, -99}));
  EXPECT_TRUE(plugin.score({}).empty());
}

TEST(Reward, CancelledStops) {
  auto plugin = reward("column");
  plugin.plugin.call.cancel = true;
  plugin.score({{""}, {}, {}, {}, 0});
  EXPECT_EQ(plugin.status, MORTISE_CANCELLED);
}

}  // namespace
}  // namespace mortise::test
