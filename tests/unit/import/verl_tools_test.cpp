// verl's files of tools and interactions become parameters of the environment `python`.
#include "import_support.h"
#include "support/temp_dir.h"

namespace mortise::test {
namespace {

constexpr std::string_view kTools = R"(tools:
  - class_name: "my.tools.Judge"
    config: {type: native, penalty: -0.05}
    tool_schema:
      type: "function"
      function:
        name: "judge"
        description: "Judges it"
        parameters:
          type: "object"
          properties: {answer: {type: "string", description: "the answer"}}
          required: ["answer"]
  - class_name: my.tools.OwnSchema
    config: {type: native}
)";

class VerlTools : public ::testing::Test {
 protected:
  [[nodiscard]] std::string settings(const std::string& more) const {
    return "algorithm.adv_estimator=grpo actor_rollout_ref.rollout.multi_turn.enable=True " + more;
  }
  // The setting of the table multi_turn, with a file of this text.
  [[nodiscard]] std::string with_file(const std::string& leaf, std::string_view text) const {
    dir_.write("file.yaml", std::string(text));
    return settings("actor_rollout_ref.rollout.multi_turn." + leaf + "=" + (dir_.path() / "file.yaml").string());
  }
  [[nodiscard]] static MultiTurnConfig turns(const std::string& text) {
    return imported("verl", text, "run.sh").rollout.multi_turn;
  }
  [[nodiscard]] std::string error(const std::string& leaf, std::string_view text) const {
    return import_error("verl", with_file(leaf, text), "run.sh");
  }
  [[nodiscard]] static Json param(const MultiTurnConfig& turns, const char* name) {
    const auto value = parse_json(turns.params.at(name).get<std::string>(), name);
    return value.ok() ? *value : Json();
  }
  TempDir dir_;
};

TEST_F(VerlTools, AFileOfToolsKeepsItsClassesSettingsAndSchemas) {
  const MultiTurnConfig turns = VerlTools::turns(with_file("tool_config_path", kTools));
  const Json tools = param(turns, "verl_tools");
  ASSERT_EQ(tools.size(), 2U);
  EXPECT_EQ(tools[0]["class_name"], "my.tools.Judge");
  EXPECT_EQ(tools[0]["config"], (Json{{"type", "native"}, {"penalty", -0.05}}));
  EXPECT_EQ(tools[0]["tool_schema"]["function"]["parameters"]["properties"]["answer"]["type"], "string");
  EXPECT_FALSE(tools[1].contains("tool_schema"));
  EXPECT_EQ(turns.reward_weight, 0.0) << "verl gives the rewards of tools to the reward function alone";
  EXPECT_EQ(turns.environment, "python");
  EXPECT_TRUE(turns.enable);
}

TEST_F(VerlTools, AProgramThatSpeaksMcpIsAServer) {
  dir_.write("servers.json", R"({"mcpServers": {"a": {"command": "python", "args": ["my server.py", "-v"]},
                                                "b": {"command": "search"}}})");
  const std::string entry = R"(tools:
  - class_name: verl.tools.mcp_base_tool.MCPBaseTool
    config: {type: mcp, rate_limit: 120}
    mcp: {mcp_servers_config_path: )" +
                            (dir_.path() / "servers.json").string();
  const MultiTurnConfig turns = VerlTools::turns(with_file("tool_config_path", entry + "}\n"));
  EXPECT_EQ(param(turns, "mcp"), (Json{"python 'my server.py' -v", "search"}));
  EXPECT_FALSE(turns.params.contains("verl_tools"));
  EXPECT_THAT(error("tool_config_path", entry + ", tool_selected_list: [x]}\n"),
              HasSubstr("takes all tools of a server"));
  EXPECT_THAT(error("tool_config_path", "tools: [{class_name: my.Mcp, config: {type: mcp}}]"),
              HasSubstr("has the class my.Mcp for an MCP server"));
  dir_.write("servers.json", R"({"mcpServers": {"a": {"url": "https://example.com/sse"}}})");
  EXPECT_THAT(error("tool_config_path", entry + "}\n"), HasSubstr("not a program with its arguments alone"));
}

TEST_F(VerlTools, InteractionsHaveVerlsNames) {
  const MultiTurnConfig turns = VerlTools::turns(with_file(
      "interaction_config_path",
      "interaction: [{class_name: my.HintInteraction, config: {}}, {name: own, class_name: my.Other, config: {a: 1}}]"));
  const Json interactions = param(turns, "verl_interactions");
  ASSERT_EQ(interactions.size(), 2U);
  EXPECT_EQ(interactions[0]["name"], "hint");
  EXPECT_EQ(interactions[1]["name"], "own");
  EXPECT_EQ(interactions[1]["config"], (Json{{"a", 1}}));
  EXPECT_THAT(error("interaction_config_path",
                    "interaction: [{class_name: a.Hint, config: {}}, {class_name: b.HintInteraction, config: {}}]"),
              HasSubstr("two interactions with the name 'hint'"));
}

TEST_F(VerlTools, AFileOfFunctionsIsNamed) {
  const std::string table = "actor_rollout_ref.rollout.multi_turn.";
  const MultiTurnConfig turns = VerlTools::turns(
      settings(table + "function_tool_path=tools.py data.function_tool_path=tools.py data.tool_config_path=null"));
  EXPECT_EQ(turns.params, (Json{{"verl_functions", "tools.py"}}));
  EXPECT_EQ(turns.reward_weight, 0.0);
  EXPECT_EQ(VerlTools::turns(settings(table + "tool_config_path=null")).params, Json::object());
  EXPECT_THAT(import_error("verl", settings("data.function_tool_path=other.py"), "run.sh"),
              HasSubstr("differs from rollout.multi_turn.function_tool_path"));
}

TEST_F(VerlTools, WhatCannotBeReadIsAnErrorOfTheSetting) {
  EXPECT_THAT(
      import_error("verl", settings("actor_rollout_ref.rollout.multi_turn.tool_config_path=absent.yaml"), "run.sh"),
      HasSubstr("the file absent.yaml cannot be read"));
  EXPECT_THAT(error("tool_config_path", "tools: [{config: {type: native}}]"),
              HasSubstr("without class_name or config"));
  EXPECT_THAT(error("tool_config_path", "tools: [{class_name: a.B, config: {}}]"),
              HasSubstr("whose config.type is not given"));
  EXPECT_THAT(error("tool_config_path", "tools: [{class_name: a.B, config: {type: sse}}]"), HasSubstr("is \"sse\""));
  EXPECT_THAT(error("tool_config_path", "tools: [{class_name: a.B, config: {type: native, key: \"${oc.env:KEY}\"}}]"),
              HasSubstr("has an interpolation"));
  EXPECT_THAT(error("tool_config_path", "tools: ["), HasSubstr("is not YAML"));
  EXPECT_THAT(error("interaction_config_path", "tools: []"), HasSubstr("has no list 'interaction'"));
  const std::string off = with_file("tool_config_path", kTools) + " actor_rollout_ref.rollout.multi_turn.enable=False";
  EXPECT_THAT(import_error("verl", off, "run.sh"), HasSubstr("rollout.multi_turn.enable is false"));
}

}  // namespace
}  // namespace mortise::test
