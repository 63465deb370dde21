// Tool calls in each form that models write them in, whole and broken.
#include "text/tools/tool_calls.h"
#include "text/tools/harmony.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace mortise {
namespace {

using testing::HasSubstr;

Json calls_in(std::string_view text, ToolFormat format, const Json& tools = Json()) {
  return tool_calls_json(find_tool_calls(text, format, tools));
}

Json weather(const std::string& city) { return {{"name", "weather"}, {"arguments", {{"city", city}}}}; }

const Json kTools =
    Json::parse(R"([{"type": "function", "function": {"name": "weather", "parameters": {"type": "object",
    "properties": {"city": {"type": "string"}, "days": {"type": "integer"}, "units": {"type": "object"}}}}}])");

TEST(ToolCalls, HermesHasOneObjectPerTag) {
  const char* text =
      "I look.\n<tool_call>\n{\"name\": \"weather\", \"arguments\": {\"city\": \"Oslo\"}}\n</tool_call>\n"
      "<tool_call>{\"name\": \"weather\", \"arguments\": \"{\\\"city\\\": \\\"Rome\\\"}\"}</tool_call>";
  EXPECT_EQ(calls_in(text, ToolFormat::kHermes), Json::array({weather("Oslo"), weather("Rome")}));
  EXPECT_EQ(calls_in("It is 5 degrees.", ToolFormat::kHermes), Json::array());
  // A stop string may have taken the end tag, and a tool may take nothing.
  EXPECT_EQ(calls_in("<tool_call>{\"name\": \"now\"}", ToolFormat::kHermes),
            Json::parse(R"([{"name": "now", "arguments": {}}])"));
}

TEST(ToolCalls, ABrokenCallHasAFaultForTheModel) {
  const auto fault = [](std::string_view text, ToolFormat format) {
    const auto calls = find_tool_calls(text, format, Json());
    EXPECT_EQ(calls.size(), 1U) << text;
    return calls.empty() ? std::string() : calls.front().fault;
  };
  EXPECT_THAT(fault("<tool_call>{\"name\": weather}</tool_call>", ToolFormat::kHermes), HasSubstr("not valid JSON"));
  EXPECT_THAT(fault("<tool_call>{\"arguments\": {}}</tool_call>", ToolFormat::kHermes), HasSubstr("no \"name\""));
  EXPECT_THAT(fault("<tool_call>{\"name\": \"f\", \"arguments\": [1]}</tool_call>", ToolFormat::kHermes),
              HasSubstr("arguments of 'f' are not a JSON object"));
  EXPECT_THAT(fault("<tool_call>weather</tool_call>", ToolFormat::kQwen3Coder), HasSubstr("<function=NAME>"));
  EXPECT_THAT(fault("[weather(city=Oslo)]", ToolFormat::kLlama3Pythonic), HasSubstr("cannot be read"));
  EXPECT_THAT(fault("[TOOL_CALLS]weather", ToolFormat::kMistral), HasSubstr("NAME[ARGS]{...}"));
  EXPECT_THAT(fault("<|python_tag|>weather", ToolFormat::kLlama3Json), HasSubstr("no JSON object"));
  const Json told = calls_in("<tool_call>{</tool_call>", ToolFormat::kHermes);
  EXPECT_TRUE(told[0].contains("error") && !told[0].contains("arguments")) << told.dump();
}

TEST(ToolCalls, Qwen3CoderTakesTypesFromTheSchema) {
  const char* text =
      "<tool_call>\n<function=weather>\n<parameter=city>\n12\n</parameter>\n<parameter=days>\n3\n</parameter>\n"
      "<parameter=units>\n{\"t\": \"C\"}\n</parameter>\n<parameter=note>\ntwo\nlines\n</parameter>\n</function>\n"
      "</tool_call>";
  EXPECT_EQ(calls_in(text, ToolFormat::kQwen3Coder, kTools),
            Json::parse(R"([{"name": "weather", "arguments": {"city": "12", "days": 3, "units": {"t": "C"},
                             "note": "two\nlines"}}])"));
}

TEST(ToolCalls, LlamaWritesObjectsWithParameters) {
  const Json expected = Json::array({weather("Oslo"), weather("Rome")});
  EXPECT_EQ(
      calls_in("<|python_tag|>{\"name\": \"weather\", \"parameters\": {\"city\": \"Oslo\"}}; {\"name\": \"weather\", "
               "\"parameters\": {\"city\": \"Rome\"}}",
               ToolFormat::kLlama3Json),
      expected);
  EXPECT_EQ(calls_in("{\"answer\": 4}", ToolFormat::kLlama3Json), Json::array()) << "an answer in JSON is no call";
  EXPECT_EQ(calls_in("[weather(city='Oslo'), weather(city=\"Rome\")]", ToolFormat::kLlama3Pythonic), expected);
  EXPECT_EQ(calls_in("[f(a=-1, b=[1.5, True, None], c={'k': ('x',)},)]", ToolFormat::kLlama3Pythonic),
            Json::parse(R"([{"name": "f", "arguments": {"a": -1, "b": [1.5, true, null], "c": {"k": ["x"]}}}])"));
  EXPECT_EQ(calls_in("[1, 2, 3]", ToolFormat::kLlama3Pythonic), Json::array()) << "a list is an ordinary answer";
  EXPECT_EQ(calls_in("12", ToolFormat::kLlama3Pythonic), Json::array());
}

TEST(ToolCalls, MistralHasAListOrNamesWithArguments) {
  const Json expected = Json::array({weather("Oslo"), weather("Rome")});
  EXPECT_EQ(
      calls_in("[TOOL_CALLS] [{\"name\": \"weather\", \"arguments\": {\"city\": \"Oslo\"}}, {\"name\": \"weather\", "
               "\"arguments\": {\"city\": \"Rome\"}}]",
               ToolFormat::kMistral),
      expected);
  EXPECT_EQ(calls_in("[TOOL_CALLS]weather[ARGS]{\"city\": \"Oslo\"}[TOOL_CALLS]weather{\"city\": \"Rome\"}",
                     ToolFormat::kMistral),
            expected);
}

// The channels of gpt-oss: thoughts are no call, and the name stands before or after the channel.
TEST(ToolCalls, GptOssNamesTheFunctionInTheHeader) {
  const Json oslo = Json::array({weather("Oslo")});
  EXPECT_EQ(calls_in("<|channel|>analysis<|message|>I send it to=functions.weather soon.<|end|><|start|>assistant"
                     "<|channel|>commentary to=functions.weather <|constrain|>json<|message|>{\"city\": \"Oslo\"}",
                     ToolFormat::kGptOss),
            oslo);
  EXPECT_EQ(calls_in(" to=functions.weather<|channel|>commentary json<|message|>{\"city\": \"Oslo\"}<|call|>",
                     ToolFormat::kGptOss),
            oslo);
  EXPECT_EQ(calls_in("<|channel|>final<|message|>It is cold: {\"city\": 1}", ToolFormat::kGptOss), Json::array());
  EXPECT_EQ(calls_in("", ToolFormat::kGptOss), Json::array());
  const auto fault = [](std::string_view text) {
    const auto calls = find_tool_calls(text, ToolFormat::kGptOss, Json());
    EXPECT_EQ(calls.size(), 1U) << text;
    return calls.empty() ? std::string() : calls.front().fault;
  };
  EXPECT_THAT(fault("<|channel|>commentary to=browser.open<|message|>{}"),
              HasSubstr("'browser.open', not to functions"));
  EXPECT_THAT(fault("<|channel|>commentary to=functions.f"), HasSubstr("no <|message|>"));
  EXPECT_THAT(fault("<|channel|>commentary to=functions.f<|message|>{"), HasSubstr("not valid JSON"));
}

// The answer to a call repeats the function's name, also if the call cannot be read.
TEST(ToolCalls, GptOssKeepsTheNameOfAFaultyCall) {
  const auto names = [](std::string_view text) {
    std::vector<std::string> out;
    for (const ToolCall& call : find_tool_calls(text, ToolFormat::kGptOss, Json())) {
      EXPECT_NE(call.fault, "") << text;
      out.push_back(call.name);
    }
    return out;
  };
  using Names = std::vector<std::string>;
  EXPECT_EQ(names(" to=functions.f<|channel|>commentary json<|message|>{\"a\": 3,<|call|>"), Names{"f"});
  EXPECT_EQ(names("<|channel|>commentary to=functions.f"), Names{"f"});
  EXPECT_EQ(names(" to=functions.f"), Names{"f"});
  EXPECT_EQ(names("<|channel|>commentary to=functions.f<|message|>[1]"), Names{"f"});
  EXPECT_EQ(names("<|channel|>commentary to=browser.open<|message|>{}"), Names{"browser.open"});
  EXPECT_EQ(names(" to=functions.f<|message|>{<|end|><|start|>assistant to=functions.g<|message|>{"),
            (Names{"f", "g"}));
}

TEST(ToolCalls, GptOssCallsNothingInMessagesOfOthersAndInPlainText) {
  for (const std::string_view text :
       {"<|channel|>final<|message|>7<|end|><|start|>user to=functions.f<|message|>{}",
        "<|channel|>final<|message|>7<|end|><|start|>functions.mul to=assistant<|channel|>commentary<|message|>42",
        "I set auto=5 now", "I go to=5 now", "<|channel|>final auto=5<|message|>7"})
    EXPECT_EQ(calls_in(text, ToolFormat::kGptOss), Json::array()) << text;
}

struct Channels {
  std::string reasoning, answer;
  bool operator==(const Channels&) const = default;
};

// In pieces of `size` bytes, as a stream brings them.
Channels split(std::string_view text, size_t size) {
  HarmonyText out;
  for (size_t at = 0; at < text.size(); at += size) out.push(text.substr(at, size));
  out.finish();
  return {out.reasoning, out.answer};
}

TEST(HarmonyText, TellsReasoningFromTheAnswer) {
  const std::pair<const char*, Channels> cases[] = {
      {"<|channel|>analysis<|message|>2+2 < 5<|end|><|start|>assistant<|channel|>final<|message|>4<|return|>",
       {"2+2 < 5", "4"}},
      {"<|channel|>analysis<|message|>a<|end|><|start|>assistant<|channel|>analysis<|message|>b<|end|>"
       "<|start|>assistant<|channel|>commentary<|message|>I look.<|end|><|start|>assistant<|channel|>final<|message|>c",
       {"a\nb", "I look.\nc"}},
      {"<|channel|>commentary to=functions.f <|constrain|>json<|message|>{}<|call|>",
       {"", "<|channel|>commentary to=functions.f <|constrain|>json<|message|>{}"}},
      {"<|channel|>analysis<|message|>cut <|", {"cut <|", ""}},
      {"<|channel|>anal", {"", ""}},
      {"<|channel|>final<|message|>no end<|start|>assistant<|channel|>analysis<|message|>late", {"late", "no end"}},
      {"plain text", {"", "plain text"}},
      {"", {"", ""}},
  };
  for (const auto& [text, want] : cases) {
    for (const size_t size : {1, 3, 1000}) {
      const Channels got = split(text, size);
      EXPECT_EQ(got.reasoning, want.reasoning) << text << " in pieces of " << size;
      EXPECT_EQ(got.answer, want.answer) << text << " in pieces of " << size;
    }
  }
}

}  // namespace
}  // namespace mortise
