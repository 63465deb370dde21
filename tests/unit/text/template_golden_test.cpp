// Every reference case of tests/golden/text/chat_templates and of the tokenizers' own templates: text, errors, spans.
#include "text/template/chat_template.h"

#include "text_test_support.h"

namespace mortise {
namespace {

using testing_text::golden;
using testing_text::read_rows;

RenderInput input_of(const Json& row) {
  RenderInput input;
  input.messages = row["messages"];
  input.tools = row["tools"];
  input.add_generation_prompt = row["add_generation_prompt"].get<bool>();
  input.kwargs = row["kwargs"];
  return input;
}

class TemplateGolden : public ::testing::TestWithParam<const char*> {};

TEST_P(TemplateGolden, Renders) {
  const Path folder = golden("chat_templates") / GetParam();
  const auto source = default_env().read_file(folder / "template.jinja");
  ASSERT_TRUE(source.ok());
  const auto chat = ChatTemplate::parse(*source, "template.jinja");
  ASSERT_TRUE(chat.ok()) << chat.error().to_string();
  for (const Json& row : read_rows(folder / "cases.jsonl")) {
    SCOPED_TRACE(row.dump());
    const auto rendered = chat->render(input_of(row));
    if (row.contains("error")) {
      ASSERT_FALSE(rendered.ok()) << rendered->text;
      EXPECT_THAT(rendered.error().what, ::testing::HasSubstr(row["error"].get<std::string>()));
      continue;
    }
    ASSERT_TRUE(rendered.ok()) << rendered.error().to_string();
    EXPECT_EQ(rendered->text, row["expected"].get<std::string>());
    if (!row.contains("assistant_spans")) continue;
    std::vector<std::vector<size_t>> spans;
    for (const TextRange& span : rendered->assistant_spans) spans.push_back({span.begin, span.end});
    EXPECT_EQ(spans, row["assistant_spans"].get<std::vector<std::vector<size_t>>>());
  }
}

INSTANTIATE_TEST_SUITE_P(All, TemplateGolden,
                         ::testing::Values("bracketed", "channels", "chatml", "dated", "expressions", "extras",
                                           "filters", "generation", "loops", "macros", "reasoning", "tool_calls",
                                           "turns"),
                         [](const auto& param) { return std::string(param.param); });

class FolderTemplateGolden : public ::testing::TestWithParam<const char*> {};

TEST_P(FolderTemplateGolden, RendersAndEncodes) {
  const Path folder = golden("tokenizers") / GetParam();
  const auto tokenizer = Tokenizer::load(folder);
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.error().to_string();
  for (const Json& row : read_rows(folder / "chat.jsonl")) {
    SCOPED_TRACE(row.dump());
    RenderInput input = input_of(row);
    for (const auto& [role, text] : tokenizer->special_tokens()) {
      if (!input.kwargs.contains(role)) input.kwargs[role] = text;
    }
    const TemplateSource* source = tokenizer->chat_template(!input.tools.is_null());
    ASSERT_NE(source, nullptr);
    const auto chat = ChatTemplate::parse(source->text, source->place);
    ASSERT_TRUE(chat.ok()) << chat.error().to_string();
    const auto rendered = chat->render(input);
    ASSERT_TRUE(rendered.ok()) << rendered.error().to_string();
    EXPECT_EQ(rendered->text, row["expected"].get<std::string>());
    const auto ids = tokenizer->encode(rendered->text);
    ASSERT_TRUE(ids.ok());
    EXPECT_EQ(*ids, testing_text::ids_of(row["ids"]));
  }
}

INSTANTIATE_TEST_SUITE_P(All, FolderTemplateGolden, ::testing::Values("llama3", "metaspace_first", "qwen2"),
                         [](const auto& param) { return std::string(param.param); });

}  // namespace
}  // namespace mortise
