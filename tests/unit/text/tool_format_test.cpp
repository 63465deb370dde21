// The form of tool calls that a chat template writes.
#include "text/tools/tool_format_of.h"

#include <gtest/gtest.h>

#include "text/tools/tool_calls.h"

namespace mortise {
namespace {

// A template whose assistant turns are `turn`, which may use `call`, and end with `end`.
std::optional<ToolFormat> format_of(const std::string& turn, const std::string& end = "<|end|>") {
  const std::string source =
      "{% if tools %}{{ tools | tojson }} <tool_call>{\"name\": <NAME>}</tool_call>\n{% endif %}"
      "{% for m in messages %}<|{{ m.role }}|>{% if m.tool_calls %}{% for c in m.tool_calls %}{% set call = c.function %}" +
      turn + "{% endfor %}{% else %}{{ m.content }}{% endif %}" + end +
      "{% endfor %}{% if add_generation_prompt %}<|assistant|>{% endif %}";
  return tool_format_of(ChatTemplates::single(source, "test").value());
}

TEST(ToolFormatOf, IsTheOneThatReadsTheTemplatesOwnCalls) {
  EXPECT_EQ(
      format_of(
          "<tool_call>\n{\"name\": \"{{ call.name }}\", \"arguments\": {{ call.arguments | tojson }}}\n</tool_call>"),
      ToolFormat::kHermes);
  EXPECT_EQ(
      format_of("<tool_call>\n<function={{ call.name }}>\n{% for k, v in call.arguments | items %}<parameter={{ k }}>\n"
                "{{ v }}\n</parameter>\n{% endfor %}</function>\n</tool_call>"),
      ToolFormat::kQwen3Coder);
  EXPECT_EQ(format_of("{\"name\": \"{{ call.name }}\", \"parameters\": {{ call.arguments | tojson }}}"),
            ToolFormat::kLlama3Json);
  EXPECT_EQ(format_of("[{{ call.name }}({% for k, v in call.arguments | items %}{{ k }}={{ v }}{% endfor %})]"),
            ToolFormat::kLlama3Pythonic);
  EXPECT_EQ(
      format_of("[TOOL_CALLS][{\"name\": \"{{ call.name }}\", \"arguments\": {{ call.arguments | tojson }}}]", "</s>"),
      ToolFormat::kMistral);
  EXPECT_EQ(format_of("<|channel|>commentary to=functions.{{ call.name }} <|constrain|>json<|message|>"
                      "{{ call.arguments | tojson }}",
                      "<|call|>"),
            ToolFormat::kGptOss);
}

TEST(ToolFormatOf, ATemplateWithoutCallsHasNone) {
  EXPECT_EQ(format_of(""), std::nullopt);
  EXPECT_EQ(format_of("call {{ call.name }} now"), std::nullopt);
  EXPECT_EQ(format_of("{{ raise_exception('no tools') }}"), std::nullopt);
  EXPECT_EQ(tool_format_of(ChatTemplates()), std::nullopt);
}

TEST(LengthWithoutCalls, HoldsBackWhatMayBeginACall) {
  const auto shown = [](std::string_view text, ToolFormat format) {
    return std::string(text.substr(0, length_without_calls(text, format)));
  };
  EXPECT_EQ(shown("a < b", ToolFormat::kHermes), "a < b");
  EXPECT_EQ(shown("a <tool_c", ToolFormat::kHermes), "a ");
  EXPECT_EQ(shown("a <tool_call>{", ToolFormat::kQwen3Coder), "a ");
  EXPECT_EQ(shown("a [TOOL", ToolFormat::kMistral), "a ");
  EXPECT_EQ(shown("a [TOOLS", ToolFormat::kMistral), "a [TOOLS");
  EXPECT_EQ(shown("\n[f(", ToolFormat::kLlama3Pythonic), "");
  EXPECT_EQ(shown("see [f(", ToolFormat::kLlama3Pythonic), "see [f(");
  EXPECT_EQ(shown("  ", ToolFormat::kLlama3Json), "");
  EXPECT_EQ(shown("<|python_tag|>{", ToolFormat::kLlama3Json), "");
}

}  // namespace
}  // namespace mortise
