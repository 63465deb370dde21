// The assistant's tokens of a rendered conversation.
#include "text/tokenizer/assistant_mask.h"

#include <map>

#include "text/unicode/utf8.h"
#include "text_test_support.h"

namespace mortise {
namespace {

using testing::HasSubstr;
using testing_text::golden;
using testing_text::is_long;
using testing_text::oracle_command;
using testing_text::read_rows;

Tokenizer load_golden(const char* name) {
  auto tokenizer = Tokenizer::load(golden("tokenizers") / name);
  EXPECT_TRUE(tokenizer.ok());
  return *std::move(tokenizer);
}

std::string masked_text(const Tokenizer& tokenizer, const std::vector<int64_t>& ids, const std::vector<uint8_t>& mask) {
  std::vector<int64_t> kept;
  for (size_t i = 0; i < ids.size(); ++i) {
    if (mask[i] != 0) kept.push_back(ids[i]);
  }
  return tokenizer.decode(kept);
}

std::string slice(const std::string& text, size_t begin, size_t end) {
  const size_t from = unicode::byte_offset_of(text, begin);
  return text.substr(from, unicode::byte_offset_of(text, end) - from);
}

// Conversations of the golden template with {% generation %}: the masked tokens hold the blocks, and are few more.
TEST(AssistantMask, HoldsTheGenerationBlocks) {
  const auto source = default_env().read_file(golden("chat_templates") / "generation" / "template.jinja");
  ASSERT_TRUE(source.ok());
  const auto chat = ChatTemplate::parse(*source, "generation");
  ASSERT_TRUE(chat.ok());
  int num_spans = 0;
  for (const char* const name : {"qwen2", "llama3", "metaspace_first"}) {
    const Tokenizer tokenizer = load_golden(name);
    for (const Json& row : read_rows(golden("chat_templates") / "generation" / "cases.jsonl")) {
      if (!row.contains("expected")) continue;
      RenderInput input;
      input.messages = row["messages"];
      input.add_generation_prompt = row["add_generation_prompt"].get<bool>();
      input.kwargs = row["kwargs"];
      const auto rendered = chat->render(input);
      ASSERT_TRUE(rendered.ok()) << rendered.error().to_string();
      const auto ids = tokenizer.encode(rendered->text);
      ASSERT_TRUE(ids.ok());
      const auto mask = assistant_mask(tokenizer, rendered->text, *ids, rendered->assistant_spans);
      ASSERT_TRUE(mask.ok()) << mask.error().to_string();
      std::string want;
      for (const TextRange& span : rendered->assistant_spans) {
        want += slice(rendered->text, span.begin, span.end);
        ++num_spans;
      }
      const std::string got = masked_text(tokenizer, *ids, *mask);
      // A token may reach over an end of a block: by a few characters, never by a turn.
      EXPECT_GE(got.size() + 1, want.size()) << rendered->text;
      EXPECT_LE(got.size(), want.size() + 8 * rendered->assistant_spans.size()) << rendered->text;
      if (rendered->assistant_spans.empty()) {
        EXPECT_EQ(got, "");
      }
    }
  }
  EXPECT_GT(num_spans, 20);
}

TEST(AssistantMask, CharactersInSeveralTokens) {
  const Tokenizer tokenizer = load_golden("llama3");
  const std::string text = "ab 🦜🦜 cd";
  const auto ids = tokenizer.encode(text);
  ASSERT_TRUE(ids.ok());
  ASSERT_GT(ids->size(), 5U);  // the birds are bytes there
  const std::vector<TextRange> spans = {{3, 4}, {4, 4}, {7, 8}};
  const auto mask = assistant_mask(tokenizer, text, *ids, spans);
  ASSERT_TRUE(mask.ok());
  std::string got;  // the mask as the tokens are laid: one letter each
  for (const uint8_t m : *mask) got += m != 0 ? '1' : '0';
  const std::string bird = masked_text(tokenizer, *ids, *mask);
  EXPECT_THAT(bird, HasSubstr("🦜")) << got;
  EXPECT_EQ(bird.find("🦜"), bird.rfind("🦜")) << got;
  EXPECT_EQ(mask->front(), 0);
  EXPECT_EQ(mask->back(), 1) << got;
}

// The masked tokens of a text, as the decoder shows them one by one.
std::vector<std::string> masked_tokens(const Tokenizer& tokenizer, const std::string& text, const std::string& wanted) {
  const auto ids = tokenizer.encode(text);
  EXPECT_TRUE(ids.ok());
  const size_t begin = unicode::count_code_points(text.substr(0, text.find(wanted)));
  const std::vector<TextRange> spans = {{begin, begin + unicode::count_code_points(wanted)}};
  const auto mask = assistant_mask(tokenizer, text, *ids, spans);
  EXPECT_TRUE(mask.ok()) << mask.error().to_string();
  std::vector<std::string> tokens;
  for (size_t i = 0; mask.ok() && i < ids->size(); ++i) {
    if ((*mask)[i] != 0) tokens.push_back(tokenizer.token_text((*ids)[i]).value_or("?"));
  }
  return tokens;
}

std::string joined(const std::vector<std::string>& tokens) {
  std::string text;
  for (const std::string& token : tokens) text += token;
  return text;
}

TEST(AssistantMask, ATextThatTheTokenizerNormalises) {
  const Tokenizer composes = load_golden("qwen2");  // NFC
  const std::string text = "cafe\u0301 is <|im_start|>cafe\u0301<|im_end|> or caf\u00e9";
  EXPECT_EQ(joined(masked_tokens(composes, text, "cafe\u0301<|im_end|>")), "caf\u00c3\u00a9<|im_end|>");
  const Tokenizer prepends = load_golden("llama2_prepend");  // a space in front of every stretch between added tokens
  EXPECT_EQ(joined(masked_tokens(prepends, "<s>a b</s>c d</s>", "c d</s>")), "\u2581c\u2581d</s>");
  EXPECT_EQ(joined(masked_tokens(prepends, "<s>a b</s> c d</s>", "d</s>")), "\u2581d</s>");
  EXPECT_EQ(joined(masked_tokens(prepends, "<s> x</s>", " x")), "\u2581\u2581x");
}

TEST(AssistantMask, TokensOfAnotherTextAreRefused) {
  const Tokenizer tokenizer = load_golden("qwen2");
  const auto ids = tokenizer.encode("abc " + std::string(1000, 'x'));
  ASSERT_TRUE(ids.ok());
  const std::vector<TextRange> spans = {{0, 3}};
  const auto mask = assistant_mask(tokenizer, "abc " + std::string(1000, 'y'), *ids, spans);
  ASSERT_FALSE(mask.ok());
  EXPECT_THAT(mask.error().to_string(), HasSubstr("from byte 4 on"));
}

// Random conversations through transformers (assistant_mask_oracle.py): the same text, ids and masks. The folder
// added_flags is left out: a character of no token (its tokens eat white space) lets transformers mark all behind it.
TEST(AssistantMask, AsTransformers) {
  std::string command = oracle_command("assistant_mask_oracle.py");
  if (command.empty()) GTEST_SKIP() << "MORTISE_ORACLES_PYTHON is not set: transformers did not judge the masks";
  const test::TempDir dir;
  command += " '" + (dir / "rows.jsonl").string() + "' " + (is_long() ? "5000" : "40") + " 5";
  for (const char* name : {"qwen2", "llama3", "gpt2_string_merges", "deepseek_digits", "llama2_prepend",
                           "metaspace_first", "gemma_replace"})
    command += " '" + (golden("tokenizers") / name).string() + "'";
  ASSERT_EQ(std::system(command.c_str()), 0) << command;
  std::map<std::string, Tokenizer> tokenizers;
  int num_different = 0;
  for (const Json& row : read_rows(dir / "rows.jsonl")) {
    const auto folder = row["folder"].get<std::string>();
    if (!tokenizers.contains(folder)) tokenizers.emplace(folder, Tokenizer::load(folder).value());
    const Tokenizer& tokenizer = tokenizers.at(folder);
    RenderInput input;
    input.messages = row["messages"];
    const auto rendered = ChatTemplate::parse(row["template"].get<std::string>(), "t")->render(input);
    ASSERT_TRUE(rendered.ok()) << rendered.error().to_string();
    ASSERT_EQ(rendered->text, row["text"].get<std::string>());
    const auto ids = tokenizer.encode(rendered->text);
    ASSERT_TRUE(ids.ok());
    ASSERT_EQ(*ids, testing_text::ids_of(row["ids"])) << row["text"];
    const auto mask = assistant_mask(tokenizer, rendered->text, *ids, rendered->assistant_spans);
    ASSERT_TRUE(mask.ok()) << mask.error().to_string() << row["text"];
    if (*mask == row["mask"].get<std::vector<uint8_t>>()) continue;
    if (++num_different <= 3) ADD_FAILURE() << folder << row["text"] << Json(*mask).dump() << row["mask"].dump();
  }
  EXPECT_EQ(num_different, 0);
}

}  // namespace
}  // namespace mortise
