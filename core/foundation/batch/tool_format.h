// How a model writes tool calls into its turn: the forms of the models' own chat templates (rollout.multi_turn.format).
#pragma once

#include <array>
#include <string_view>

namespace mortise {

// hermes           <tool_call>{"name": ..., "arguments": {...}}</tool_call>           Hermes, Qwen2.5, Qwen3
// qwen3_coder      <tool_call><function=NAME><parameter=KEY>VALUE</parameter></function></tool_call>
// llama3_json      {"name": ..., "parameters": {...}}                                 Llama 3.1 and newer
// llama3_pythonic  [NAME(key=VALUE), ...]                                             Llama 3.2, Llama 4
// gpt-oss          <|channel|>commentary to=functions.NAME <|message|>{...}<|call|>   gpt-oss (harmony)
// mistral          [TOOL_CALLS][{"name": ..., "arguments": {...}}], or [TOOL_CALLS]NAME[ARGS]{...}
enum class ToolFormat { kHermes, kQwen3Coder, kLlama3Json, kLlama3Pythonic, kMistral, kGptOss };
constexpr auto choice_names(ToolFormat) {
  return std::array<std::string_view, 6>{"hermes",          "qwen3_coder", "llama3_json",
                                         "llama3_pythonic", "mistral",     "gpt-oss"};
}

}  // namespace mortise
