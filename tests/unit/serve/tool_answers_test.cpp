// Calls of tools in the answers of a chat, whole and streamed.
#include "serve/api/tool_answers.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <sstream>
#include <thread>

#include "fake_model.h"
#include "kept_reply.h"
#include "served_texts.h"

namespace mortise::test {
namespace {

using testing::HasSubstr;
using testing::Not;

constexpr const char* kCall = R"({"name": "mul", "arguments": {"b": 2, "a": 3}})";
constexpr const char* kTools = R"("tools": [{"type": "function", "function": {"name": "mul", "parameters": {}}}])";

// The model says the tokens after its prompt's last one, in the order of the vocabulary.
class ToolChats : public testing::Test {
 protected:
  void start(const std::vector<std::string>& tokens, std::optional<ToolFormat> format) {
    ServedTexts texts = letter_texts(dir_, "abc", "", tokens);
    texts.tool_format = format;
    service_.emplace(loop_, std::move(texts), ServiceOptions{"", "1"}, default_env());
    thread_ = std::thread([this] { loop_.run(); });
  }
  ~ToolChats() override {
    loop_.stop();
    if (thread_.joinable()) thread_.join();
  }
  std::string ask(const std::string& prompt, int num_tokens, const std::string& more) {
    const auto reply = std::make_shared<KeptReply>();
    HttpRequest request;
    request.method = "POST";
    request.path = "/v1/chat/completions";
    request.body = R"({"messages": [{"role": "user", "content": ")" + prompt + R"("}], "max_tokens": )" +
                   std::to_string(num_tokens) + ", " + more + "}";
    service_->handle(std::move(request), reply);
    reply->wait();
    return reply->body;
  }
  Json choice(const std::string& prompt, int num_tokens, const std::string& more) {
    return parse_json(ask(prompt, num_tokens, more), "answer").value()["choices"][0];
  }
  TempDir dir_;
  FakeModel model_;
  ServeLoop loop_{model_};
  std::optional<ServeService> service_;
  std::thread thread_;
};

TEST_F(ToolChats, HaveTheCallsApartFromTheText) {
  start({"<say>", "<tool_call>", kCall, "</tool_call>", "<|im_end|>"}, ToolFormat::kHermes);
  const std::string ends = std::string(kTools) + R"(, "stop_token_ids": [6])";  // <|im_end|>
  const Json one = choice("<say>", 9, ends);
  EXPECT_EQ(one["finish_reason"], "tool_calls");
  EXPECT_EQ(one["message"]["content"], nullptr) << "the rest is special tokens";
  ASSERT_EQ(one["message"]["tool_calls"].size(), 1U);
  const Json& call = one["message"]["tool_calls"][0];
  EXPECT_EQ(call["type"], "function");
  EXPECT_EQ(call["function"]["name"], "mul");
  EXPECT_EQ(call["function"]["arguments"], R"({"b":2,"a":3})") << "a text, in the model's order";
  EXPECT_THAT(call["id"].get<std::string>(), testing::StartsWith("call_"));
  const std::string stream = ask("<say>", 9, ends + R"(, "stream": true)");
  EXPECT_THAT(stream, HasSubstr(R"("index":0)"));
  EXPECT_THAT(stream, HasSubstr(R"("finish_reason":"tool_calls")"));
  EXPECT_THAT(stream, HasSubstr(R"("arguments":"{\"b\":2,\"a\":3}")"));
  // A completion that was cut says so, and a cut call is text.
  EXPECT_EQ(choice("<say>", 4, kTools)["finish_reason"], "length");
  EXPECT_EQ(choice("<say>", 2, kTools)["message"]["tool_calls"], Json::array());
}

TEST_F(ToolChats, WithoutToolsOrAFormAreText) {
  start({"<say>", "<tool_call>", kCall, "</tool_call>"}, ToolFormat::kHermes);
  const std::string shows = R"("skip_special_tokens": false)";
  for (const std::string& more :
       {shows, shows + ", " + kTools + R"(, "tool_choice": "none")", shows + R"(, "tools": [])"}) {
    const Json one = choice("<say>", 4, more);
    EXPECT_EQ(one["message"]["tool_calls"], Json::array()) << more;
    EXPECT_THAT(one["message"]["content"].get<std::string>(), HasSubstr("<tool_call>")) << more;
  }
  EXPECT_THAT(ask("<say>", 4, std::string(kTools) + R"(, "tool_choice": "required")"), HasSubstr("tool_choice"));
}

TEST_F(ToolChats, ACallThatCannotBeReadIsText) {
  start({"<say>", "<tool_call>", R"({"name": mul})", "</tool_call>"}, ToolFormat::kHermes);
  const std::string shows = std::string(kTools) + R"(, "skip_special_tokens": false)";
  const Json one = choice("<say>", 4, shows);
  EXPECT_EQ(one["message"]["tool_calls"], Json::array());
  EXPECT_THAT(one["message"]["content"].get<std::string>(), HasSubstr("{\"name\": mul}"));
  EXPECT_THAT(ask("<say>", 4, shows + R"(, "stream": true)"), HasSubstr("</tool_call>"));
}

TEST_F(ToolChats, ChannelsLeaveTheirCallsOut) {
  start({"<|start|>", "<|channel|>", "analysis", "<|message|>", "think", "<|end|>",
         "<|start|>assistant to=functions.mul", "<|channel|>commentary json", "<|message|>{\"a\": 3}", "<|call|>"},
        ToolFormat::kGptOss);
  const Json one = choice("<|channel|>", 9, kTools);
  EXPECT_EQ(one["message"]["reasoning"], "think");
  EXPECT_EQ(one["message"]["tool_calls"][0]["function"]["arguments"], R"({"a":3})");
  EXPECT_EQ(one["message"]["content"], nullptr);
  const std::string stream = ask("<|channel|>", 9, std::string(kTools) + R"(, "stream": true)");
  EXPECT_THAT(stream, HasSubstr(R"("name":"mul")"));
  EXPECT_THAT(stream, Not(HasSubstr("functions.mul")));
}

struct StreamedForm {
  ToolFormat format;
  std::vector<std::string> tokens;
};

class StreamedCalls : public ToolChats, public testing::WithParamInterface<StreamedForm> {};

// A cut anywhere: before a call, in its mark, in its arguments, and behind it.
TEST_P(StreamedCalls, GiveTheSameTextAndCallsAsAWholeAnswer) {
  start(GetParam().tokens, GetParam().format);
  const bool has_channels = GetParam().format == ToolFormat::kGptOss;
  const std::string more = std::string(kTools) + (has_channels ? "" : R"(, "skip_special_tokens": false)");
  bool had_calls = false;
  for (int length = 1; length < static_cast<int>(GetParam().tokens.size()); ++length) {
    const Json whole = choice(GetParam().tokens.front(), length, more)["message"];
    std::string text, reasoning;
    Json calls = Json::array();
    std::istringstream lines(ask(GetParam().tokens.front(), length, more + R"(, "stream": true)"));
    for (std::string line; std::getline(lines, line);) {
      if (!line.starts_with("data: {")) continue;
      const Json delta = parse_json(line.substr(6), "event").value()["choices"][0]["delta"];
      text += delta.value("content", "");
      reasoning += delta.value("reasoning", "");
      for (const Json& call : delta.value("tool_calls", Json::array())) calls.push_back(call["function"]);
    }
    const Json& content = whole["content"];
    EXPECT_EQ(text, content.is_null() ? "" : content.get<std::string>()) << length;
    EXPECT_EQ(reasoning, whole.value("reasoning", "")) << length;
    ASSERT_EQ(calls.size(), whole["tool_calls"].size()) << length;
    for (size_t i = 0; i < calls.size(); ++i) EXPECT_EQ(calls[i], whole["tool_calls"][i]["function"]) << length;
    had_calls = had_calls || !calls.empty();
  }
  EXPECT_TRUE(had_calls);
}

INSTANTIATE_TEST_SUITE_P(
    Forms, StreamedCalls,
    testing::Values(StreamedForm{ToolFormat::kHermes,
                                 {"<say>", "a <b> ", "so <tool", "_ca", "ll>", kCall, "</tool_call>", "<tool_call>{",
                                  R"("name": "mul")", "}</tool_call>", " end", "<tool_call>", "broken"}},
                    StreamedForm{ToolFormat::kQwen3Coder,
                                 {"<say>", "text <", "tool_call", "><function=mul>", "<parameter=a>3</parameter>",
                                  "</function></tool_call>", "more"}},
                    StreamedForm{ToolFormat::kLlama3Json,
                                 {"<|python_tag|>", R"({"name": "mul", )", R"("parameters": {"a": 3}})", "; x"}},
                    StreamedForm{ToolFormat::kMistral,
                                 {"<say>", "text [TOOL", "_CALLS]", "mul[ARGS]", R"({"a": 3})", "[TOOL_CALLS]", "mul"}},
                    StreamedForm{ToolFormat::kGptOss,
                                 {"<|channel|>", "analysis", "<|message|>", "think", "<|end|>", "<|start|>assistant",
                                  " to=functions.mul<|channel|>commentary", R"(<|message|>{"a": 3})", "<|call|>",
                                  "<|start|>assistant<|channel|>final<|message|>", "done"}}));

// The text before a call, letter by letter.
TEST(CallText, ShowsWhatBelongsToNoCall) {
  const TempDir dir;
  const std::string text = "see <this> <tool_call>{\"name\": \"f\"}</tool_call>";
  const ServedTexts texts = letter_texts(dir, "abcdefghijklmnopqrstuvwxyz_<>/ {}:\"");
  CallText out(*texts.tokenizer, ToolFormat::kHermes, true);
  size_t longest = 0;
  const std::vector<int64_t> ids = texts.tokenizer->encode(text, false).value();
  for (const int64_t id : ids) {
    out.push(id);
    EXPECT_TRUE(text.starts_with(out.shown())) << out.shown();
    longest = std::max(longest, out.shown().size());
  }
  EXPECT_EQ(out.shown(), "see <this> ");
  EXPECT_EQ(longest, out.shown().size()) << "no part of the call was shown";
  EXPECT_EQ(out.before_calls(), "see <this> ");
}

// Clients send earlier calls as they got them.
TEST(ToolMessages, ArgumentsReachTheTemplateAsAnObject) {
  const TempDir dir;
  ServedTexts texts = letter_texts(dir, "abcdefghijklmnopqrstuvwxyz0123456789");
  texts.chat_templates =
      ChatTemplates::single(
          "{% for m in messages %}{% for c in m.tool_calls or [] %}{{ c.function.arguments.a if c.function.arguments is defined }}{% endfor %}"
          "{% endfor %}",
          "test")
          .value();
  const Json body = parse_json(R"({"messages": [{"role": "assistant", "content": null, "tool_calls": [
      {"id": "1", "type": "function", "function": {"name": "f", "arguments": "{\"a\": \"xyz\"}"}},
      {"id": "2", "type": "function", "function": {"name": "g"}}]}]})",
                               "body")
                        .value();
  const auto ids = read_tokenize_call(body, texts);
  ASSERT_TRUE(ids.ok()) << ids.error().to_string();
  EXPECT_EQ(texts.tokenizer->decode(*ids), "xyz");
}

}  // namespace
}  // namespace mortise::test
