// Turning a data row into prompt tokens and columns: the forms of a prompt, templates, length limits.
#include "experience/data/prompt_encoder.h"

#include <gtest/gtest.h>

#include "char_folder.h"

namespace mortise {
namespace {

class PromptEncoderTest : public ::testing::Test {
 protected:
  PromptEncoder encoder(PromptEncoderOptions options = {}, bool with_template = true) {
    return with_source(with_template ? "{% for m in messages %}{{ m.role[0] }}:{{ m.content }} {% endfor %}a:" : "",
                       std::move(options));
  }
  PromptEncoder with_source(const std::string& source, PromptEncoderOptions options = {}) {
    ChatTemplates chats;
    if (!source.empty()) chats = ChatTemplates::single(source, "t", tokenizer_).value();
    return PromptEncoder(tokenizer_, std::move(chats), std::move(options));
  }
  static std::string text_of(const PromptEncoder& encoder, const char* row) {
    const auto prompt = encoder.encode(Json::parse(row), "f:1", 0);
    return prompt.ok() ? prompt->text : prompt.error().to_string();
  }
  test::CharFolder folder_;
  Tokenizer tokenizer_ = folder_.tokenizer();
};

TEST_F(PromptEncoderTest, ReadsEveryFormOfAPrompt) {
  const auto e = encoder();
  const Prompt text = e.encode(Json::parse(R"({"prompt": "1+2="})"), "f:1", 100).value();
  EXPECT_EQ(text.text, "1+2=");
  EXPECT_EQ(text.token_ids.size(), 4U);
  const Prompt ids = e.encode(Json{{"prompt_token_ids", text.token_ids}}, "f:2", 100).value();
  EXPECT_EQ(ids.token_ids, text.token_ids);
  EXPECT_EQ(ids.text, "1+2=");
  for (const char* key : {"prompt", "messages"}) {
    const Json row{{key, Json::parse(R"([{"role": "b", "content": "1+1"}])")}};
    const Prompt chat = e.encode(row, "f:3", 100).value();
    EXPECT_EQ(chat.text, "b:1+1 a:") << key;
    EXPECT_EQ(Json::parse(chat.messages)[0]["content"], "1+1");
  }
}

TEST_F(PromptEncoderTest, ASystemPromptGoesInFrontOfChatsWithoutOne) {
  PromptEncoderOptions options;
  options.system_prompt = "1=2";
  const auto e = with_source("{% for m in messages %}{{ m.content }} {% endfor %}a:", options);
  EXPECT_EQ(text_of(e, R"({"prompt": [{"role": "b", "content": "1+1"}]})"), "1=2 1+1 a:");
  EXPECT_EQ(text_of(e, R"({"prompt": [{"role": "system", "content": "3"}, {"role": "b", "content": "1"}]})"), "3 1 a:");
  const Prompt chat = e.encode(Json::parse(R"({"messages": [{"role": "b", "content": "1"}]})"), "f:1", 0).value();
  EXPECT_EQ(Json::parse(chat.messages).size(), 2U) << "rewards see what the model sees";
  EXPECT_NE(text_of(e, R"({"prompt": "1"})")
                .find("data.system_prompt is set, but the row's prompt is not a list of messages"),
            std::string::npos);
}

TEST_F(PromptEncoderTest, KeepsColumnsAndFindsTheAnswerWhereVerlPutsIt) {
  const Prompt p =
      encoder()
          .encode(
              Json::parse(
                  R"({"prompt": "1", "data_source": "gsm", "reward_model": {"style": "rule", "ground_truth": "7"}, "extra_info": {"index": 3}})"),
              "f:1", 100)
          .value();
  EXPECT_EQ(p.data_source, "gsm");
  EXPECT_EQ(p.columns["ground_truth"], "7");
  EXPECT_EQ(p.columns["extra_info"]["index"], 3);
  EXPECT_FALSE(p.columns.contains("prompt"));
}

TEST_F(PromptEncoderTest, ASourceWithoutANameIsUnknown) {
  const auto e = encoder();
  for (const char* row :
       {R"({"prompt": "1"})", R"({"prompt": "1", "data_source": ""})", R"({"prompt": "1", "data_source": null})"})
    EXPECT_EQ(e.encode(Json::parse(row), "f:1", 100).value().data_source, "unknown") << row;
  const auto number = e.encode(Json::parse(R"({"prompt": "1", "data_source": 3})"), "f:1", 100);
  ASSERT_FALSE(number.ok());
  EXPECT_NE(number.error().to_string().find("f:1: 'data_source' is '3', but must be a text"), std::string::npos);
}

TEST_F(PromptEncoderTest, ErrorsNameThePlace) {
  const auto e = encoder({}, false);
  const auto message = [&](const char* row, int64_t vocab = 10) {
    const auto result = e.encode(Json::parse(row), "data.jsonl:7", vocab);
    EXPECT_FALSE(result.ok()) << row;
    return result.ok() ? "" : result.error().to_string();
  };
  EXPECT_EQ(message(R"({"question": "1"})"),
            "data.jsonl:7: the row has no prompt: neither 'prompt' (text or messages), 'messages' nor "
            "'prompt_token_ids'; the row has 'question': set data.prompt_key=question if that is the prompt. Otherwise "
            "name the prompt's column with data.prompt_key");
  PromptEncoderOptions renamed;
  renamed.prompt_key = "query_text";
  const auto other = encoder(renamed, false).encode(Json::parse(R"({"prompt": "1"})"), "f:1", 100);
  ASSERT_FALSE(other.ok());
  EXPECT_NE(other.error().next.find("the row has 'prompt': set data.prompt_key=prompt"), std::string::npos);
  EXPECT_NE(message(R"({"answer": "1", "promt": "1"})")
                .find("; the row has 'promt': did you mean 'prompt'? Otherwise name the prompt's column with"),
            std::string::npos);
  EXPECT_NE(message(R"({"prompt_token_ids": [1, 10]})").find("token id 10 at position 1"), std::string::npos);
  EXPECT_NE(message(R"({"prompt_token_ids": [1, -1]})").find("token id -1"), std::string::npos);
  EXPECT_NE(message(R"({"prompt_token_ids": ["x"]})").find("not an integer"), std::string::npos);
  EXPECT_NE(message(R"({"prompt": [{"role": "u", "content": "x"}]})").find("no chat template"), std::string::npos);
  EXPECT_NE(message(R"({"prompt": ""})").find("no tokens"), std::string::npos);
  EXPECT_NE(message(R"([1])").find("must be a JSON object"), std::string::npos);
}

TEST_F(PromptEncoderTest, TheTemplateSeesWhatTransformersGivesIt) {
  PromptEncoderOptions options;
  options.template_kwargs = {{"a", 1}, {"b", 2}};
  const auto e = with_source(
      "{{ eos_token }}{{ a }}{{ b }}{% for m in messages %}{{ m.content }}{{ m.tool_calls is defined }}{{ m.thinking "
      "}}="
      "{{ m.reasoning_content }}{% endfor %}{{ tools | length if tools else tools is none }}",
      options);
  EXPECT_EQ(text_of(e, R"({"prompt": [{"role": "u", "content": "1", "tool_calls": null}]})"), "<|end|>121False=True");
  EXPECT_EQ(text_of(e, R"({"prompt": [{"content": "1", "reasoning": "g"}], "chat_template_kwargs": {"b": 7}})"),
            "<|end|>171Falseg=gTrue");
  EXPECT_EQ(text_of(e, R"({"prompt": [{"content": "1", "thinking": "c", "reasoning_content": "d"}], "tools": [1, 2]})"),
            "<|end|>121Falsec=d2");
  EXPECT_EQ(text_of(e, R"({"prompt": [{"content": "1"}], "tools": "[3]"})"), "<|end|>121False=1");
  const auto refused = [&](const char* row, const char* text) {
    EXPECT_NE(text_of(e, row).find(text), std::string::npos) << text_of(e, row);
  };
  refused(R"({"prompt": []})", "f:1: the conversation has no messages");
  refused(R"({"prompt": ["x"]})", "f:1: message 0 of the conversation is not an object");
  refused(R"({"prompt": [{"content": "1"}], "tools": "[3"})", "f:1: the column 'tools' is text, but not JSON");
  refused(R"({"prompt": [{"content": "1"}], "tools": 3})", "f:1: the column 'tools' must be a list");
  refused(R"({"prompt": [{"content": "1"}], "chat_template_kwargs": 3})", "'chat_template_kwargs' must be an object");
}

TEST_F(PromptEncoderTest, LengthPolicies) {
  const auto cut = [&](Truncation truncation) -> Result<std::string> {
    PromptEncoderOptions options;
    options.max_prompt_length = 3;
    options.truncation = truncation;
    const auto e = encoder(options);
    Prompt p = e.encode(Json{{"prompt", "12345"}}, "f:1", 100).value();
    TRY(e.apply_length_policy(p, "f:1"));
    return p.text;
  };
  EXPECT_EQ(cut(Truncation::kLeft).value(), "345");
  EXPECT_EQ(cut(Truncation::kRight).value(), "123");
  EXPECT_EQ(cut(Truncation::kMiddle).value(), "145");
  EXPECT_NE(cut(Truncation::kError).error().to_string().find("5 tokens, more than data.max_prompt_length = 3"),
            std::string::npos);
}

}  // namespace
}  // namespace mortise
