// json_schema against the Python package jsonschema, and what it refuses, finds and gives up on.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <fstream>
#include <nlohmann/json.hpp>

#include "reward_call.h"

namespace mortise::test {
namespace {

using Json = nlohmann::json;
using testing::HasSubstr;

RewardCall json_schema(std::map<std::string, std::string> params) {
  static const mortise_pack* pack = load_pack(std::string(MORTISE_BINARY_DIR) + "/lib/mortise/packs/mortise.reward.so");
  return RewardCall(find_plugin(pack, MORTISE_KIND_REWARD, "json_schema"), std::move(params));
}

double score(RewardCall& plugin, const std::string& completion) {
  return plugin.score({{completion}, {}, {}, {}, 0})[0];
}

TEST(JsonSchema, AgreesWithJsonschemaOnEveryCase) {
  RewardRows rows;
  std::vector<std::optional<std::string>> schemas;
  std::vector<double> expected;
  std::ifstream file(std::string(MORTISE_SOURCE_DIR) + "/tests/golden/schema/cases.jsonl");
  std::vector<std::string> lines;
  for (std::string line; std::getline(file, line);) {
    const Json c = Json::parse(line);
    rows.completions.push_back(c["value"].dump());
    schemas.emplace_back(c["schema"].dump());
    expected.push_back(c["valid"].get<bool>() ? 1 : 0);
    lines.push_back(line);
  }
  rows.columns = {{"schema", MORTISE_COLUMN_JSON, schemas, {}}};
  auto plugin = json_schema({{"column", "schema"}});
  const std::vector<double> got = plugin.score(rows);
  ASSERT_EQ(got.size(), 600U);
  for (size_t i = 0; i < got.size(); ++i) EXPECT_EQ(got[i], expected[i]) << lines[i];
  EXPECT_TRUE(plugin.plugin.call.failed_rows.empty());
}

TEST(JsonSchema, FindsTheJson) {
  auto plugin =
      json_schema({{"schema", R"({"type": "object", "required": ["a"]})"}, {"miss", "0.25"}, {"broken", "-1"}});
  EXPECT_EQ(score(plugin, R"({"a": 1})"), 1);
  EXPECT_EQ(score(plugin, "Sure:\n```json\n{\"a\": 1}\n```\nDone."), 1);
  EXPECT_EQ(score(plugin, "```\n{\"a\": 1}\n```"), 1);
  EXPECT_EQ(score(plugin, "```json\n{}\n```\nno:\n```json\n{\"a\": 2}\n```"), 1) << "the last block";
  EXPECT_EQ(score(plugin, "{}"), 0.25);
  EXPECT_EQ(score(plugin, "{\"a\": 1"), -1);
  EXPECT_EQ(score(plugin, ""), -1);
  auto whole = json_schema({{"schema", "true"}, {"whole", "true"}});
  EXPECT_EQ(score(whole, "```json\n1\n```"), 0);
  EXPECT_EQ(score(whole, " 1 "), 1);
}

TEST(JsonSchema, RefusesSchemasThatItCannotKeep) {
  const auto refusal = [](const std::string& schema) {
    const RewardCall made = json_schema({{"schema", schema}});
    EXPECT_EQ(made.plugin.self, nullptr) << schema;
    return made.plugin.call.error;
  };
  EXPECT_THAT(refusal(R"({"propertees": {}})"), HasSubstr("schema at #/propertees: the keyword is not known"));
  EXPECT_THAT(refusal(R"({"properties": {"x": {"unevaluatedItems": false}}})"),
              HasSubstr("#/properties/x/unevaluatedItems"));
  EXPECT_THAT(refusal(R"({"type": "text"})"), HasSubstr("no such type: \"text\""));
  EXPECT_THAT(refusal(R"({"pattern": "a("})"), HasSubstr("'a(' at character 2"));
  EXPECT_THAT(refusal(R"({"$ref": "http://example.org/s"})"), HasSubstr("only references inside"));
  EXPECT_THAT(refusal(R"({"$ref": "#/$defs/x"})"), HasSubstr("there is nothing at #/$defs/x"));
  EXPECT_THAT(refusal(R"({"minLength": -1})"), HasSubstr("whole number"));
  EXPECT_THAT(refusal("{"), HasSubstr("not valid JSON"));
  EXPECT_THAT(json_schema({}).plugin.call.error, HasSubstr("give schema"));
}

// RFC 6901: in a fragment, ~0 and ~1 mean ~ and /, and %XX means a byte, which is decoded first.
TEST(JsonSchema, FollowsReferencesWithEscapes) {
  const std::string defs =
      R"("$defs": {"a b": {"const": 1}, "50%": {"const": 2}, "x/y": {"const": 3}, "m~n": {"const": 4}, "é": {"const": 5},
                   "%20": {"const": 6}, "~1": {"const": 7}, "": {"const": 8}}})";
  const auto accepts = [&](const std::string& reference, const std::string& value) {
    auto plugin = json_schema({{"schema", R"({"properties": {"v": {"$ref": ")" + reference + R"("}}, )" + defs}});
    EXPECT_NE(plugin.plugin.self, nullptr) << reference << ": " << plugin.plugin.call.error;
    return plugin.plugin.self != nullptr && score(plugin, "{\"v\": " + value + "}") == 1;
  };
  constexpr std::pair<const char*, const char*> kCases[] = {
      {"#/$defs/a%20b", "1"},  {"#/$defs/a b", "1"},  {"#/%24defs/50%25", "2"}, {"#/$defs/x~1y", "3"},
      {"#/$defs/x%7e1y", "3"}, {"#/$defs/m~0n", "4"}, {"#/$defs/%C3%A9", "5"},  {"#/$defs/é", "5"},
      {"#/$defs/%2520", "6"},  {"#/$defs/~01", "7"},  {"#/$defs/%7E01", "7"},   {"#/$defs/", "8"}};
  for (const auto& [reference, value] : kCases) {
    EXPECT_TRUE(accepts(reference, value)) << reference;
    EXPECT_FALSE(accepts(reference, "0")) << reference;
  }
  auto item = json_schema({{"schema", R"({"anyOf": [{"const": 9}, {"$ref": "#/anyOf/0"}]})"}});
  EXPECT_EQ(score(item, "9"), 1);
  const auto refusal = [](const std::string& schema) { return json_schema({{"schema", schema}}).plugin.call.error; };
  for (const char* broken : {"#/$defs/%2", "#/$defs/%zz", "#/$defs/a~2", "#/$defs/a~", "#/allOf/01", "#/allOf/2",
                             "#/allOf/-", "#$defs", "#/type/0/x"}) {
    const std::string text =
        R"({"$ref": ")" + std::string(broken) + R"(", "$defs": {"a~2": true, "%2": true}, "type": ["null"],
                                  "allOf": [true, true]})";
    EXPECT_THAT(refusal(text), HasSubstr("there is nothing at " + std::string(broken))) << broken;
  }
  EXPECT_THAT(refusal(R"({"$ref": "#/title", "title": "no schema"})"), HasSubstr("#/title: a schema is an object"));
  EXPECT_THAT(refusal(R"({"$ref": "#/default", "default": {"patern": "x"}})"), HasSubstr("schema at #/default/patern"));
}

TEST(JsonSchema, WorkIsBounded) {
  std::string chain = R"({"$ref": "#/$defs/0", "$defs": {)";
  for (int i = 0; i < 5000; ++i)
    chain += '"' + std::to_string(i) + R"(": {"$ref": "#/$defs/)" + std::to_string(i + 1) + R"("}, )";
  EXPECT_THAT(json_schema({{"schema", chain + R"("5000": true}})"}}).plugin.call.error,
              HasSubstr("references are chained too deep"));
  auto circle = json_schema({{"schema", R"({"$ref": "#"})"}});
  EXPECT_EQ(score(circle, "1"), 0);
  auto tree =
      json_schema({{"schema", R"({"anyOf": [{"items": {"$ref": "#"}}, {"items": {"$ref": "#"}}], "maxItems": 1})"}});
  EXPECT_EQ(score(tree, std::string(5000, '[') + std::string(5000, ']')), 0);
  auto unique = json_schema({{"schema", R"({"uniqueItems": true})"}});
  std::string many = "[0";
  for (int i = 1; i < 20000; ++i) many += "," + std::to_string(i);
  EXPECT_EQ(score(unique, many + "]"), 0);
  const std::string deep = std::string(300'000, '[') + std::string(300'000, ']');
  EXPECT_EQ(score(unique, "[" + deep + "," + deep + "]"), 0) << "never compared";
  EXPECT_EQ(score(unique, R"(["[[[[", "\"[", {"[": [1]}])"), 1) << "brackets in texts are none";
}

// A check beyond the limits fails, also if the schema asks for a mismatch.
TEST(JsonSchema, GivingUpIsNoFaultThatNotOrIfMayTurn) {
  const std::string deep = std::string(500, '[') + std::string(500, ']');
  for (const char* schema :
       {R"({"not": {"$ref": "#/$defs/d"}, "$defs": {"d": {"items": {"$ref": "#/$defs/d"}}}})",
        R"({"if": {"$ref": "#/$defs/d"}, "then": false, "$defs": {"d": {"items": {"$ref": "#/$defs/d"}}}})",
        R"({"oneOf": [true, {"$ref": "#/$defs/d"}], "$defs": {"d": {"items": {"$ref": "#/$defs/d"}}}})"}) {
    auto plugin = json_schema({{"schema", schema}});
    EXPECT_EQ(score(plugin, deep), 0) << schema;
  }
}

// A pattern of a schema that cannot be matched is no verdict on the completion.
TEST(JsonSchema, APatternThatTakesTooManyStepsGivesNoReward) {
  auto plugin = json_schema({{"schema", R"({"pattern": "(a+)+$"})"}});
  EXPECT_TRUE(std::isnan(score(plugin, '"' + std::string(5'000, 'a') + "!\"")));
  EXPECT_THAT(plugin.plugin.call.failed_rows.at(0).text, HasSubstr("takes more than"));
  EXPECT_EQ(score(plugin, "\"aaa\""), 1);
}

TEST(JsonSchema, DeepAndBrokenJsonAreToldApart) {
  auto plugin = json_schema({{"schema", "true"}, {"miss", "0.25"}, {"broken", "-1"}});
  EXPECT_EQ(score(plugin, std::string(300'000, '[') + std::string(300'000, ']')), 0.25);
  EXPECT_EQ(score(plugin, std::string(300'000, '[')), -1);
}

TEST(JsonSchema, ABadSchemaInAColumnFailsItsRow) {
  auto plugin = json_schema({{"column", "s"}});
  const TestColumn column{"s", MORTISE_COLUMN_TEXT, {R"({"type": "integer"})", "{", std::nullopt}, {}};
  const std::vector<double> got = plugin.score({{"1", "1", "1"}, {column}, {}, {}, 0});
  EXPECT_EQ(got[0], 1);
  EXPECT_TRUE(std::isnan(got[1]) && std::isnan(got[2]));
  EXPECT_EQ(plugin.plugin.call.failed_rows.size(), 1U);
}

}  // namespace
}  // namespace mortise::test
