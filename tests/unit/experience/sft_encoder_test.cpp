// Which tokens of an SFT row carry the loss.
#include "experience/data/sft_encoder.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "char_folder.h"
#include "experience/data/dataset.h"

namespace mortise {
namespace {

using testing::HasSubstr;

// Turns as "a:text" and the end token; the assistant's text with its end is marked.
constexpr const char* kTemplate =
    "{% for m in messages %}{{ m.role }}:{% if m.role == 'a' %}{% generation %}{{ m.content }}<|end|>{% endgeneration "
    "%}"
    "{% else %}{{ m.content }} {% endif %}{% endfor %}{% if add_generation_prompt %}a:{% endif %}";

class SftEncoderTest : public ::testing::Test {
 protected:
  Result<std::optional<Prompt>> encode(const std::string& row) {
    ChatTemplates chats = ChatTemplates::single(template_, "t", tokenizer_).value();
    prompts_.emplace(tokenizer_, std::move(chats), prompt_options_);
    const SftEncoder encoder = TRY(SftEncoder::create(*prompts_, options_));
    return encoder.encode(Json::parse(row), "sft.jsonl:7");
  }
  // "context|learnt text, the rest of it as dots", or the error.
  std::string learnt(const std::string& row) {
    const auto prompt = encode(row);
    if (!prompt.ok()) return prompt.error().to_string();
    if (!prompt->has_value()) return "left out";
    const Prompt& p = **prompt;
    EXPECT_EQ(p.response_ids.size(), p.response_mask.size());
    std::string text = tokenizer_.decode(p.token_ids) + "|";
    for (size_t i = 0; i < p.response_ids.size(); ++i)
      text += p.response_mask[i] != 0 ? tokenizer_.decode({&p.response_ids[i], 1}) : ".";
    return text;
  }
  SftEncoderTest() {
    options_.end_id = tokenizer_.eos_id();
    options_.max_response_length = 4;
    options_.max_length = 100;
  }
  test::CharFolder folder_;
  Tokenizer tokenizer_ = folder_.tokenizer();
  std::string template_ = kTemplate;
  PromptEncoderOptions prompt_options_;
  SftEncoderOptions options_;
  std::optional<PromptEncoder> prompts_;
};

TEST_F(SftEncoderTest, ACompletionEndsWithTheEndToken) {
  EXPECT_EQ(learnt(R"({"prompt": "1+1=", "response": "12"})"), "1+1=|12<|end|>");
  EXPECT_EQ(learnt(R"({"prompt": "1", "response": ""})"), "1|<|end|>");
  options_.completion_only_loss = false;
  EXPECT_EQ(learnt(R"({"prompt": "1+1=", "response": "12"})"), "1|+1=12<|end|>");
  EXPECT_EQ(learnt(R"({"messages": [{"role": "b", "content": "1"}], "response": "2"})"), "b|:1 a:2<|end|>");
}

TEST_F(SftEncoderTest, OfAWholeChatAllTokensOrTheAssistants) {
  const char* const row = R"({"messages": [{"role": "b", "content": "1"}, {"role": "a", "content": "23"},
      {"role": "b", "content": "4"}, {"role": "a", "content": "5"}, {"role": "b", "content": "6"}]})";
  EXPECT_EQ(learnt(row), "b|:1 a:23<|end|>b:4 a:5<|end|>b:6 ");
  options_.assistant_only_loss = true;
  EXPECT_EQ(learnt(row), "b:1 a:|23<|end|>......5<|end|>");
  EXPECT_THAT(learnt(R"({"messages": [{"role": "b", "content": "1"}]})"),
              HasSubstr("sft.jsonl:7: the chat has no token of the assistant"));
}

TEST_F(SftEncoderTest, ACompletionMayBeMessages) {
  const char* const row = R"({"prompt": [{"role": "a", "content": "0"}, {"role": "b", "content": "1"}],
      "response": [{"role": "a", "content": "2"}, {"role": "b", "content": "3"}, {"role": "a", "content": "4"}]})";
  EXPECT_EQ(learnt(row), "a:0<|end|>b:1 a:|2<|end|>b:3 a:4<|end|>");
  options_.assistant_only_loss = true;
  EXPECT_EQ(learnt(row), "a:0<|end|>b:1 a:|2<|end|>......4<|end|>");
  options_.completion_only_loss = false;
  EXPECT_EQ(learnt(row), "a:|0<|end|>......2<|end|>......4<|end|>");
  options_.assistant_only_loss = false;
  EXPECT_EQ(learnt(row), "a|:0<|end|>b:1 a:2<|end|>b:3 a:4<|end|>");
  EXPECT_THAT(learnt(R"({"prompt": "1", "response": [{"role": "a", "content": "2"}]})"),
              HasSubstr("is a list of messages, but the prompt is not"));
}

TEST_F(SftEncoderTest, TheMarksHaveToBeThere) {
  template_ = "{% for m in messages %}{{ m.content }}{% endfor %}";
  const char* const row = R"({"messages": [{"role": "a", "content": "12"}]})";
  EXPECT_EQ(learnt(row), "1|2");
  options_.assistant_only_loss = true;
  EXPECT_THAT(learnt(row),
              testing::AllOf(testing::StartsWith("sft.assistant_only_loss: the chat template does not mark"),
                             HasSubstr("{% generation %}"), HasSubstr("model.custom_chat_template")));
  template_ = kTemplate;
  EXPECT_THAT(learnt(R"({"prompt": "1", "response": "2"})"), HasSubstr("needs rows that are chats"));
  options_.assistant_only_loss = false;
  options_.completion_only_loss = true;
  EXPECT_THAT(learnt(row), HasSubstr("this one is a whole chat"));
}

TEST_F(SftEncoderTest, LongChats) {
  const char* const row =
      R"({"messages": [{"role": "b", "content": "1"}, {"role": "a", "content": "23"}]})";  // 9 tokens
  options_.assistant_only_loss = true;
  options_.max_length = 9;
  EXPECT_EQ(learnt(row), "b:1 a:|23<|end|>");
  options_.max_length = 8;
  EXPECT_THAT(learnt(row), HasSubstr("sft.jsonl:7: the chat has 9 tokens, more than sft.max_length = 8"));
  prompt_options_.truncation = Truncation::kRight;
  EXPECT_EQ(learnt(row), "b:1 a:|23");
  prompt_options_.truncation = Truncation::kLeft;
  options_.max_length = 4;
  EXPECT_EQ(learnt(row), ":|23<|end|>");
  prompt_options_.truncation = Truncation::kRight;
  EXPECT_EQ(learnt(row), "left out");
  options_.filter_overlong = true;
  options_.max_length = 8;
  EXPECT_EQ(learnt(row), "left out");
}

TEST_F(SftEncoderTest, RefusesWhatCannotBeLearnt) {
  EXPECT_THAT(
      learnt(R"({"prompt": "1", "response": "1234"})"),
      HasSubstr(
          "sft.jsonl:7: the completion has 5 tokens including its end token, more than data.max_response_length = 4"));
  EXPECT_THAT(learnt(R"({"prompt": "1", "response": 7})"), HasSubstr("neither a completion 'response'"));
  EXPECT_THAT(learnt(R"({"prompt": "1", "response": 7})"), testing::Not(HasSubstr("did you mean")));
  EXPECT_THAT(
      learnt(R"({"prompt": "1", "respnse": "2"})"),
      HasSubstr("the row has 'respnse': did you mean 'response'? Otherwise name the column with data.response_key"));
  EXPECT_THAT(learnt(R"({"prompt": "1"})"), HasSubstr("data.response_key"));
  EXPECT_THAT(learnt(R"({"messages": "1"})"), HasSubstr("data.messages_key"));
  EXPECT_THAT(learnt("[1]"), HasSubstr("must be a JSON object"));
  EXPECT_THAT(learnt(R"({"messages": []})"), HasSubstr("no messages"));
  options_.vocab_size = 3;
  EXPECT_THAT(learnt(R"({"prompt": "0", "response": "9"})"), HasSubstr("outside the model's vocabulary of 3"));
  EXPECT_THAT(learnt(R"({"messages": [{"role": "b", "content": "9"}]})"), HasSubstr("outside the model's vocabulary"));
}

TEST_F(SftEncoderTest, EveryRowOfADataSetIsLookedAtAndTheFirstBadOneNamed) {
  std::string rows;
  for (int i = 0; i < 500; ++i)
    rows += i == 250 || i == 480 ? "{\"prompt\": \"1\"}\n" : "{\"prompt\": \"1\", \"response\": \"2\"}\n";
  const std::string path = folder_.write("sft.jsonl", rows);
  prompts_.emplace(tokenizer_, ChatTemplates(), prompt_options_);
  const SftEncoder encoder = SftEncoder::create(*prompts_, options_).value();
  DatasetOptions options;
  options.files = {path};
  const auto encode = [&](const Json& row, const std::string& where) { return encoder.encode(row, where); };
  for (int i = 0; i < 3; ++i) {
    const auto dataset = Dataset::load(default_env(), RowEncoder(encode), options);
    ASSERT_FALSE(dataset.ok());
    EXPECT_THAT(dataset.error().to_string(), testing::StartsWith(path + ":251: the row has neither a completion"));
    EXPECT_THAT(dataset.error().to_string(), HasSubstr("(2 of the rows cannot be used)"));
  }
}

}  // namespace
}  // namespace mortise
