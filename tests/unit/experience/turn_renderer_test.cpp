// What stands between two assistant turns: exactly what the chat template writes there, and nothing sampled twice.
#include "experience/rollout/turns/turn_renderer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "char_folder.h"
#include "experience/rollout/turns/tool_answer.h"
#include "experience/rollout/turns/turn_loop.h"
#include "foundation/base/env.h"

namespace mortise {
namespace {

using testing::HasSubstr;

// As Qwen's: a turn ends with <|end|>, and answers of tools are grouped in a turn of the user.
constexpr const char* kGrouped =
    "{% for m in messages %}{% if m.role == 'tool' %}"
    "{% if loop.first or messages[loop.index0 - 1].role != 'tool' %}b:{% endif %}g{{ m.content }}h"
    "{% if loop.last or messages[loop.index0 + 1].role != 'tool' %}<|end|> {% endif %}"
    "{% else %}{{ 'c' if m.role == 'user' else 'a' }}:{{ m.content }}<|end|> {% endif %}{% endfor %}"
    "{% if add_generation_prompt %}a:{% endif %}";

class TurnRendererTest : public ::testing::Test {
 protected:
  Result<TurnRenderer> renderer(const std::string& source, bool has_tools = true) {
    ChatRenderer chats(ChatTemplates::single(source, "t", tokenizer_).value(), Json::object());
    return TurnRenderer::create(tokenizer_, std::move(chats), {end_id()}, has_tools);
  }
  [[nodiscard]] int64_t end_id() const { return *tokenizer_.token_id("<|end|>"); }
  [[nodiscard]] std::vector<int64_t> ids(const std::string& text) const { return tokenizer_.encode(text).value(); }
  [[nodiscard]] std::string between(const TurnRenderer& turns, const std::string& sampled, const char* messages) const {
    const auto suffix = turns.suffix(Prompt(), ids(sampled), Json::parse(messages));
    return suffix.ok() ? tokenizer_.decode(*suffix) : suffix.error().to_string();
  }
  test::CharFolder folder_;
  Tokenizer tokenizer_ = folder_.tokenizer();
};

TEST_F(TurnRendererTest, TheSuffixIsWhatTheTemplateWritesAfterTheTurn) {
  const TurnRenderer turns = renderer(kGrouped).value();
  const char* two = R"([{"role": "tool", "content": "12"}, {"role": "tool", "content": "34"}])";
  EXPECT_EQ(between(turns, "f 1<|end|>", two), " b:g12hg34h<|end|> a:");
  // A turn that a stop text ended has no end token: the suffix has it.
  EXPECT_EQ(between(turns, "f 1", two), "<|end|> b:g12hg34h<|end|> a:");
  EXPECT_EQ(between(turns, "1<|end|>", R"([{"role": "user", "content": "5"}])"), " c:5<|end|> a:");
}

TEST_F(TurnRendererTest, TheWholeRowReadsAsTheTemplateWouldWriteIt) {
  const TurnRenderer turns = renderer(kGrouped).value();
  const ChatRenderer chats(ChatTemplates::single(kGrouped, "t", tokenizer_).value(), Json::object());
  const Json all = Json::parse(R"([{"role": "user", "content": "1+1"}, {"role": "assistant", "content": "f"},
      {"role": "tool", "content": "2"}, {"role": "assistant", "content": "g"}, {"role": "user", "content": "h"}])");
  std::string row = chats.render(Json::object(), Json::array({all[0]}), true, "t").value().text;
  row += "f<|end|>" + between(turns, "f<|end|>", R"([{"role": "tool", "content": "2"}])");
  row += "g<|end|>" + between(turns, "g<|end|>", R"([{"role": "user", "content": "h"}])");
  EXPECT_EQ(row, chats.render(Json::object(), all, true, "t").value().text);
}

TEST_F(TurnRendererTest, ATemplateThatCannotContinueIsRefused) {
  const auto why = [&](const std::string& source, bool has_tools = true) {
    const auto made = renderer(source, has_tools);
    return made.ok() ? "accepted" : made.error().to_string();
  };
  EXPECT_THAT(why("{% for m in messages %}{% if m.role != 'tool' %}{{ m.content }} {% endif %}{% endfor %}"),
              HasSubstr("leaves out messages with the role 'tool'"));
  EXPECT_THAT(why("{{ messages[-1].content }}"), HasSubstr("leaves out what the assistant said"));
  EXPECT_THAT(why("{{ messages | length }}{% for m in messages %}{{ m.content }} {% endfor %}"),
              HasSubstr("not prefix-preserving"));
  EXPECT_THAT(why("{% for m in messages %}{% if m.role == 'tool' %}{{ raise_exception('no tools') }}{% endif %}"
                  "{{ m.content }}{% endfor %}"),
              HasSubstr("no tools"));
  EXPECT_EQ(why("{% for m in messages %}{{ m.content }} {% endfor %}", false), "accepted");
}

// As gpt-oss's: an answer needs a turn with the call, whose name it repeats. `end` ends a turn with a call.
std::string calling_template(const std::string& end, const std::string& head = "") {
  return head +
         "{% set last = namespace(name=none) %}{% for m in messages %}{% if m.role == 'tool' %}"
         "{% if last.name is none %}{{ raise_exception('no call') }}{% endif %}"
         "b:{{ last.name }}={{ m.content }} {% elif m.tool_calls is defined %}"
         "{% set last.name = m.tool_calls[0].function.name %}a:{{ last.name }}" +
         end +
         "{% else %}{{ 'c' if m.role == 'user' else 'a' }}:{{ m.content }}<|end|>{% endif %}{% endfor %}"
         "{% if add_generation_prompt %}a:{% endif %}";
}

TEST_F(TurnRendererTest, AnswersFollowACallWhereTheTemplateWantsOne) {
  const TurnRenderer turns = renderer(calling_template("<|end|>")).value();
  const char* answer = R"([{"role": "tool", "name": "fgh", "content": "12"}])";
  EXPECT_EQ(between(turns, "fgh<|end|>", answer), "b:fgh=12 a:");
  EXPECT_EQ(between(turns, "fgh", answer), "<|end|>b:fgh=12 a:");
  EXPECT_EQ(between(turns, "1<|end|>", R"([{"role": "user", "content": "5"}])"), "c:5<|end|>a:");
}

TEST_F(TurnRendererTest, EachAnswerHasTheNameOfItsOwnCall) {
  const TurnRenderer turns = renderer(calling_template("<|end|>")).value();
  EXPECT_EQ(between(turns, "1<|end|>", R"([{"role": "tool", "name": "f", "content": "1"},
      {"role": "tool", "name": "g", "content": "2"}, {"role": "tool", "name": "g", "content": "3"},
      {"role": "tool", "name": "f", "content": "4"}, {"role": "user", "content": "5"}])"),
            "b:f=1 b:g=2 b:g=3 b:f=4 c:5<|end|>a:");
}

TEST_F(TurnRendererTest, ATemplateWithCallsIsRefusedForItsOwnFault) {
  const auto ends_otherwise = renderer(calling_template("h"));
  ASSERT_FALSE(ends_otherwise.ok());
  EXPECT_THAT(ends_otherwise.error().to_string(), HasSubstr("none of the model's end tokens"));
  EXPECT_THAT(ends_otherwise.error().to_string(), HasSubstr("eos_token_id in generation_config.json"));
  // It tells of the tools only after a call, so that no prompt has what the later turns have.
  const auto rewrites = renderer(
      calling_template("<|end|>", "{% for m in messages %}{% if m.tool_calls is defined %}h{% endif %}{% endfor %}"));
  ASSERT_FALSE(rewrites.ok());
  EXPECT_THAT(rewrites.error().to_string(), HasSubstr("no call"));
}

// The constructs of gpt-oss's own template, with answers of two functions.
TEST(TurnRenderer, ContinuesTheChannelsOfGptOss) {
  std::string characters;
  for (char c = ' '; c <= '~'; ++c) characters += c;
  const test::CharFolder folder(characters + "\n",
                                {"<|start|>", "<|message|>", "<|channel|>", "<|call|>", "<|return|>"});
  const Tokenizer tokenizer = folder.tokenizer();
  const std::string source = default_env().read_file("golden/text/chat_templates/channels/template.jinja").value();
  const auto create = [&](const std::vector<std::string>& ends) {
    std::vector<int64_t> ids;
    for (const std::string& end : ends) ids.push_back(*tokenizer.token_id(end));
    return TurnRenderer::create(
        tokenizer, ChatRenderer(ChatTemplates::single(source, "t", tokenizer).value(), Json::object()), ids, true);
  };
  const auto turns = create({"<|return|>", "<|call|>"});
  ASSERT_TRUE(turns.ok()) << turns.error().to_string();
  const Json answers = Json::parse(
      R"([{"role": "tool", "name": "f", "content": "12"}, {"role": "tool", "name": "g", "content": "34"}])");
  const auto sampled = tokenizer.encode(" to=functions.f<|channel|>commentary json<|message|>{}<|call|>").value();
  EXPECT_EQ(tokenizer.decode(turns->suffix(Prompt(), sampled, answers).value(), /*skip_special_tokens=*/false),
            "<|start|>functions.f to=assistant<|channel|>commentary<|message|>\"12\"<|end|>"
            "<|start|>functions.g to=assistant<|channel|>commentary<|message|>\"34\"<|end|><|start|>assistant");
  const auto without_call = create({"<|return|>"});
  ASSERT_FALSE(without_call.ok());
  EXPECT_THAT(without_call.error().to_string(), HasSubstr("none of the model's end tokens"));
}

TEST_F(TurnRendererTest, AnObservationOfResetBecomesPartOfThePrompt) {
  const TurnRenderer turns = renderer(kGrouped).value();
  Prompt prompt;
  prompt.messages = R"([{"role": "user", "content": "1"}])";
  const auto text = [&](const char* messages) {
    return tokenizer_.decode(turns.prompt_with(prompt, Json::parse(messages)).value());
  };
  EXPECT_EQ(text(R"([{"role": "user", "content": "+2"}])"), "c:1+2<|end|> a:");
  EXPECT_EQ(text(R"([{"role": "tool", "content": "3"}])"), "c:1<|end|> b:g3h<|end|> a:");
}

TEST(ToolAnswer, IsCutByCharactersOnTheSideThatTheConfigSays) {
  EXPECT_EQ(cut_tool_answer("abcdef", 6, TruncateSide::kMiddle), "abcdef");
  EXPECT_EQ(cut_tool_answer("abcdef", 4, TruncateSide::kMiddle), "ab...(truncated)...ef");
  EXPECT_EQ(cut_tool_answer("abcdef", 4, TruncateSide::kLeft), "abcd...(truncated)");
  EXPECT_EQ(cut_tool_answer("abcdef", 4, TruncateSide::kRight), "(truncated)...cdef");
  EXPECT_EQ(cut_tool_answer("äöüß", 4, TruncateSide::kLeft), "äöüß");
  EXPECT_EQ(cut_tool_answer("äöüß", 2, TruncateSide::kMiddle), "ä...(truncated)...ß");
}

TEST(TurnSeed, EveryTurnDrawsNumbersOfItsOwn) {
  EXPECT_EQ(turn_seed(42, 0), 42U) << "a row of one turn has the numbers that it always had";
  EXPECT_NE(turn_seed(42, 1), turn_seed(42, 2));
  EXPECT_NE(turn_seed(42, 1), turn_seed(43, 1));
  EXPECT_NE(turn_seed(42, 1), 42U);
}

}  // namespace
}  // namespace mortise
