// [rollout.multi_turn]: turns after the first one, with tools or an environment (docs/turns.md).
#pragma once

#include <array>
#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "config/keys/reward.h"
#include "foundation/batch/tool_format.h"
#include "foundation/formats/json.h"

namespace mortise {

// Which part of a tool's answer stays if it is too long.
enum class TruncateSide { kLeft, kMiddle, kRight };
constexpr auto choice_names(TruncateSide) { return std::array<std::string_view, 3>{"left", "middle", "right"}; }

struct MultiTurnConfig {
  bool enable = false;
  std::vector<std::string> tools;              // Python functions: "tools.py:calculator"
  std::string environment = "python";          // plugin of the kind environment
  std::optional<int64_t> max_assistant_turns;  // null = no limit but the length
  std::optional<int64_t> max_user_turns;       // observations; null = no limit but the length
  std::optional<int64_t> max_turn_length;      // tokens of one assistant turn; null = what is left of the response
  std::optional<int64_t> max_parallel_calls;   // tool calls of a turn that are made; null = all
  int64_t max_tool_response_length = 256;      // characters
  TruncateSide tool_response_truncate_side = TruncateSide::kMiddle;
  ToolFormat format = ToolFormat::kHermes;
  double reward_weight = 1.0;                 // factor of the environment's rewards
  std::chrono::milliseconds timeout{60'000};  // for one answer of the environment; 0 = no limit
  std::vector<WorkerRight> allow;             // what its workers may use
  Json params = Json::object();               // parameters of the environment plugin
  bool operator==(const MultiTurnConfig&) const = default;
};

#ifdef MORTISE_CONFIG_RECORDS  // read by fields.cpp alone, so that a new text recompiles one file

inline constexpr auto has_one_turn = [](const auto& k) -> bool { return !k.config.rollout.multi_turn.enable; };
inline constexpr const char* kOneTurnOnly = "rollout.multi_turn.enable is false, so a completion is one turn";

template <class Keys>
void describe_turn_limits(Keys& keys) {
  keys.compared(
          "max_assistant_turns", &MultiTurnConfig::max_assistant_turns,
          "Most assistant turns of a row. A row that reaches it ends, and its last tool calls are not made. null: "
          "only the length of the response limits the turns.")
      .at_least(1)
      .as_in_verl("null");
  keys.compared("max_user_turns", &MultiTurnConfig::max_user_turns,
                "Most observations of a row: answers of tools, or of the environment. null: no limit of its own.")
      .at_least(0)
      .as_in_verl("null")
      .trl("max_tool_calling_iterations", "null");
  keys.compared(
          "max_turn_length", &MultiTurnConfig::max_turn_length,
          "Most tokens of one assistant turn. A turn that reaches it is cut, and the row ends there. null: what is "
          "left of the response length, which counts all turns and observations of the row.")
      .at_least(1);
  keys.compared("max_parallel_calls", &MultiTurnConfig::max_parallel_calls,
                "Most tool calls of one turn that are made; the others are dropped. null: all are made.")
      .at_least(1)
      .verl("rollout.multi_turn.max_parallel_calls");
  keys.compared("max_tool_response_length", &MultiTurnConfig::max_tool_response_length,
                "Most characters of one tool's answer. A longer one is cut as tool_response_truncate_side says.")
      .at_least(1)
      .as_in_verl("256");
  keys.compared("tool_response_truncate_side", &MultiTurnConfig::tool_response_truncate_side,
                "Which part of a long answer stays, next to the mark \"(truncated)\". left: its start. right: its end. "
                "middle: half of each.")
      .as_in_verl("\"middle\"");
}

template <class Keys>
void describe_environment(Keys& keys) {
  keys.compared(
          "tools", &MultiTurnConfig::tools,
          "Python functions that the model may call, as [\"tools.py:calculator\"]. Their type hints and docstrings "
          "become the JSON schema in the prompt. They run in workers, in your Python.")
      .place()
      .trl("tools");
  keys.compared("environment", &MultiTurnConfig::environment,
                "Environment, by plugin name. python: the tools above, or a Python class (params.class = "
                "\"game.py:Game\").")
      .trl("environment_factory");
  keys.compared(
      "params", &MultiTurnConfig::params,
      "Parameters of the environment plugin: params.python = \"venv/bin/python\". An unknown name is an error.");
  keys.compared("format", &MultiTurnConfig::format,
                "How the model writes tool calls, as its chat template shows them. hermes: Qwen2.5, Qwen3, Hermes. "
                "qwen3_coder: XML. llama3_json and llama3_pythonic: Llama 3.1 and newer. mistral: [TOOL_CALLS]. "
                "gpt-oss: the commentary channel of the harmony format.")
      .as_in_verl("\"hermes\"");
  keys.compared(
      "reward_weight", &MultiTurnConfig::reward_weight,
      "Factor of the environment's own rewards in the sum with the [[reward]] tables. Each counts at the last "
      "token of its turn. An environment without rewards adds nothing.");
  keys.free(
          "timeout", &MultiTurnConfig::timeout,
          "Time limit for one answer of the environment to one row: \"500ms\", \"60s\". The row that takes longer fails: "
          "it has no reward and no loss. 0s: no limit.")
      .at_least(0);
  keys.free("allow", &MultiTurnConfig::allow,
            "What the environment's workers may use: network, files, programs. See reward.*.allow.");
}

template <class Catalog>
void describe_multi_turn_section(Catalog& catalog) {
  auto keys = catalog.table(
      "rollout.multi_turn",
      "Turns after the first: tools that the model calls, or an environment that answers it (docs/turns.md).",
      [](auto& run) -> MultiTurnConfig& { return run.rollout.multi_turn; });
  keys.read_by(kInGenerate);
  keys.compared("enable", &MultiTurnConfig::enable,
                "Give each finished turn to the environment, and continue the row after its answer. The tokens of "
                "answers have no loss.")
      .as_in_verl("false");
  keys.none_has_effect(kInTrain | kInEval | kInGenerate, has_one_turn, kOneTurnOnly);
  describe_turn_limits(keys);
  describe_environment(keys);
}

#endif  // MORTISE_CONFIG_RECORDS

}  // namespace mortise
