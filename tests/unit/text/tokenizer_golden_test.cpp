// Every reference case of tests/golden/text/tokenizers: ids, decoded text, streamed pieces.
#include <cstdlib>
#include <random>

#include "foundation/base/text.h"
#include "text/unicode/utf8.h"
#include "text_test_support.h"

namespace mortise {
namespace {

using testing_text::golden;
using testing_text::ids_of;
using testing_text::read_rows;

class TokenizerGolden : public ::testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    folder_ = golden("tokenizers") / GetParam();
    auto loaded = Tokenizer::load(folder_);
    ASSERT_TRUE(loaded.ok()) << loaded.error().to_string();
    tokenizer_ = std::make_unique<Tokenizer>(*loaded);
  }
  Path folder_;
  std::unique_ptr<Tokenizer> tokenizer_;
};

TEST_P(TokenizerGolden, Encodes) {
  for (const Json& row : read_rows(folder_ / "cases.jsonl")) {
    const auto text = row["text"].get<std::string>();
    SCOPED_TRACE(row["kind"].get<std::string>() + ": " + Json(text).dump());
    const auto plain = tokenizer_->encode(text, false);
    ASSERT_TRUE(plain.ok()) << plain.error().to_string();
    EXPECT_EQ(*plain, ids_of(row["ids"]));
    const auto special = tokenizer_->encode(text, true);
    ASSERT_TRUE(special.ok());
    EXPECT_EQ(*special, ids_of(row["ids_with_special"]));
  }
}

TEST_P(TokenizerGolden, DecodesWhatItEncoded) {
  for (const Json& row : read_rows(folder_ / "cases.jsonl")) {
    const auto ids = ids_of(row["ids_with_special"]);
    SCOPED_TRACE(row["ids_with_special"].dump());
    EXPECT_EQ(tokenizer_->decode(ids, false), row["decoded"].get<std::string>());
    EXPECT_EQ(tokenizer_->decode(ids, true), row["decoded_skip_special"].get<std::string>());
  }
}

TEST_P(TokenizerGolden, DecodesAnyIds) {
  for (const Json& row : read_rows(folder_ / "decode.jsonl")) {
    SCOPED_TRACE(row["ids"].dump());
    EXPECT_EQ(tokenizer_->decode(ids_of(row["ids"]), false), row["decoded"].get<std::string>());
    EXPECT_EQ(tokenizer_->decode(ids_of(row["ids"]), true), row["decoded_skip_special"].get<std::string>());
  }
}

TEST_P(TokenizerGolden, Streams) {
  for (const Json& row : read_rows(folder_ / "stream.jsonl")) {
    SCOPED_TRACE(row["ids"].dump());
    IncrementalDecoder decoder = tokenizer_->incremental_decoder(row["skip_special_tokens"].get<bool>());
    std::vector<std::string> pieces;
    for (const int64_t id : ids_of(row["ids"])) pieces.push_back(decoder.push(id));
    EXPECT_EQ(pieces, row["pieces"].get<std::vector<std::string>>());
    EXPECT_EQ(decoder.finish(), row["flush"].get<std::string>());
  }
}

// Any ids, with byte tokens more often. A stream shows whole characters, and joined they are the decoded text. If a run
// of bytes is not text, the characters shown before it broke are not taken back.
void expect_whole_characters(const Tokenizer& tokenizer, std::mt19937& random, bool skip_special) {
  std::vector<int64_t> bytes;  // <0xNN>, or the byte-level alphabet's tokens
  for (int64_t id = 0; id < tokenizer.vocab_size(); ++id) {
    const auto text = tokenizer.token_text(id);
    if (text && (unicode::count_code_points(*text) == 1 || text->starts_with("<0x"))) bytes.push_back(id);
  }
  std::vector<int64_t> ids(random() % 16);
  for (int64_t& id : ids) {
    const bool any = bytes.empty() || random() % 3 == 0;
    id = any ? static_cast<int64_t>(random() % static_cast<uint32_t>(tokenizer.vocab_size()))
             : bytes[random() % bytes.size()];
  }
  SCOPED_TRACE(Json(ids).dump());
  IncrementalDecoder decoder = tokenizer.incremental_decoder(skip_special);
  std::string joined;
  for (const int64_t id : ids) {
    const std::string piece = decoder.push(id);
    EXPECT_FALSE(find_invalid_utf8(piece));
    joined += piece;
  }
  const std::string rest = decoder.finish();
  EXPECT_FALSE(find_invalid_utf8(rest));
  joined += rest;
  const std::string whole = tokenizer.decode(ids, skip_special);
  const bool broken_fallback =
      tokenizer.token_id("<0x00>").has_value() && whole.find(unicode::kReplacement) != std::string::npos;
  if (!broken_fallback) {
    EXPECT_EQ(joined, whole);
  }
}

TEST(TokenizerStreams, NeverShowHalfACharacter) {
  std::mt19937 random(11);  // NOLINT(cert-msc51-cpp): the same ids at every run
  const int count = std::getenv("MORTISE_LONG") != nullptr ? 20000 : 150;
  int num_folders = 0;
  const std::vector<std::string> names = default_env().list_dir(golden("tokenizers")).value();
  for (const std::string& name : names) {
    if (!default_env().exists(golden("tokenizers") / name / "cases.jsonl")) continue;
    const auto tokenizer = Tokenizer::load(golden("tokenizers") / name);
    ASSERT_TRUE(tokenizer.ok()) << tokenizer.error().to_string();
    SCOPED_TRACE(name);
    for (int i = 0; i < count; ++i) expect_whole_characters(*tokenizer, random, i % 2 == 0);
    ++num_folders;
  }
  EXPECT_EQ(num_folders, 12);
}

INSTANTIATE_TEST_SUITE_P(All, TokenizerGolden,
                         ::testing::Values("added_flags", "deepseek_digits", "gemma_replace", "gpt2_string_merges",
                                           "gpt_oss", "legacy_gpt2", "legacy_qwen2", "llama2_prepend", "llama3",
                                           "metaspace_first", "qwen2", "wordlevel"),
                         [](const auto& param) { return std::string(param.param); });

}  // namespace
}  // namespace mortise
