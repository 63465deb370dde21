// `config explain` finds every key under every name people use; the schema says what the loader does.
#include "config/explain.h"

#include "config/fields.h"
#include "config_test_support.h"
#include "foundation/base/text.h"

namespace mortise::test {
namespace {

std::string explained(std::string_view key) {
  Result<std::string> text = explain_key(key);
  return text ? *text : "error: " + text.error().to_string();
}

TEST(Explain, AKey) {
  EXPECT_EQ(explained("actor.kl_loss_coef"),
            "actor.kl_loss_coef\n  Coefficient of the KL term of use_kl_loss.\n  type:    number\n  default: 0.001\n"
            "  allowed: at least 0 and at most 1000000\n  in TRL:  beta\n");
  EXPECT_THAT(explained("data.truncation"), HasSubstr("allowed: one of error, left, right, middle"));
  EXPECT_THAT(explained("actor.policy_loss.loss_mode"), HasSubstr("names a plugin of kind policy_loss"));
  EXPECT_THAT(explained("actor.clip_ratio_low"), HasSubstr("default: null"));
}

TEST(Explain, EveryKeyAndTable) {
  for (const Field& field : all_fields())
    EXPECT_THAT(explained(field.key), ::testing::StartsWith(field.key + "\n")) << field.key;
  for (const TableInfo& table : all_tables()) EXPECT_THAT(explained(table.name), HasSubstr(table.doc.substr(0, 20)));
}

TEST(Explain, OtherNames) {
  EXPECT_THAT(explained("actor_rollout_ref.rollout.n"), ::testing::StartsWith("rollout.n\n"));
  EXPECT_THAT(explained("reward.0.weight"), ::testing::StartsWith("reward.*.weight\n"));
  EXPECT_THAT(explained("reward.weight"), ::testing::StartsWith("reward.*.weight\n"));
  EXPECT_THAT(explained("num_generations"), ::testing::StartsWith("rollout.n\n"));
  EXPECT_THAT(explained("loss_mode"), ::testing::StartsWith("actor.policy_loss.loss_mode\n"));
  EXPECT_THAT(explained("beta"), ::testing::StartsWith("actor.kl_loss_coef\n"));
}

TEST(Explain, TablesListTheirKeys) {
  EXPECT_THAT(explained("actor.optim"), HasSubstr("  actor.optim.betas = [0.9, 0.999]\n"));
  EXPECT_THAT(explained("actor"), HasSubstr("  actor.optim.lr = "));
  EXPECT_THAT(explained("[[reward]]"), ::testing::StartsWith("[[reward]]\n"));
  EXPECT_THAT(explained(""), HasSubstr("[actor.policy_loss]"));
}

TEST(Explain, TyposNameTheNearest) {
  EXPECT_THAT(explained("actor.policy_los"), HasSubstr("did you mean 'actor.policy_loss'?"));
  EXPECT_THAT(explained("rollout.temprature"), HasSubstr("did you mean 'rollout.temperature'?"));
  EXPECT_THAT(explained("seed"),
              ::testing::AllOf(HasSubstr("data.seed\n"), HasSubstr("\nrollout.seed\n"), HasSubstr("\ntrainer.seed\n")))
      << "every key of that name";
}

TEST(Explain, AsJson) {
  ASSERT_OK_AND_ASSIGN(const Json key, explain_key_json("rollout.n"));
  EXPECT_EQ(key["default"], "1");
  EXPECT_EQ(key["trl"], "num_generations");
  ASSERT_OK_AND_ASSIGN(const Json table, explain_key_json("sft"));
  EXPECT_EQ(table.size(), 7U);
  ASSERT_OK_AND_ASSIGN(const Json all, explain_key_json(""));
  EXPECT_EQ(all.size(), all_fields().size());
  EXPECT_FALSE(explain_key_json("nothing").ok());
}

TEST(Schema, SaysWhatTheLoaderDoes) {
  const Json schema = config_schema();
  EXPECT_EQ(schema["$schema"], "https://json-schema.org/draft/2020-12/schema");
  const Json& properties = schema["properties"];
  const Json& n = properties["rollout"]["properties"]["n"];
  EXPECT_EQ(n["type"], "integer");
  EXPECT_EQ(n["minimum"], 1);
  EXPECT_EQ(n["default"], 1);
  EXPECT_EQ(properties["rollout"]["properties"]["top_p"]["exclusiveMinimum"], 0.0);
  EXPECT_EQ(properties["actor"]["additionalProperties"], false);
  EXPECT_EQ(properties["actor"]["properties"]["policy_loss"]["additionalProperties"], true);
  EXPECT_EQ(properties["actor"]["properties"]["optim"]["properties"]["betas"]["minItems"], 2);
  EXPECT_EQ(properties["reward"]["items"]["required"], Json::array({"use"}));
  EXPECT_EQ(properties["data"]["properties"]["truncation"]["enum"], Json::array({"error", "left", "right", "middle"}));
  EXPECT_EQ(properties["actor_rollout_ref"]["properties"]["actor"]["$ref"], "#/properties/actor");
}

TEST(Schema, HasEveryKeyWithItsText) {
  const Json schema = config_schema();
  for (const Field& field : all_fields()) {
    if (field.inline_params) continue;
    const Json* node = &schema;
    for (const std::string_view part : split(field.key, '.')) {
      ASSERT_TRUE(node != nullptr) << field.key;
      node = part == "*" ? json_find(*node, "items") : json_find((*node)["properties"], part);
    }
    ASSERT_TRUE(node != nullptr) << field.key;
    EXPECT_EQ((*node)["description"], field.doc);
  }
}

}  // namespace
}  // namespace mortise::test
