// Every reference case of tests/golden/text/tokenizers: ids, decoded text, streamed pieces.
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

INSTANTIATE_TEST_SUITE_P(All, TokenizerGolden,
                         ::testing::Values("added_flags", "deepseek_digits", "gemma_replace", "gpt2_string_merges",
                                           "legacy_gpt2", "legacy_qwen2", "llama2_prepend", "llama3", "metaspace_first",
                                           "qwen2", "wordlevel"),
                         [](const auto& param) { return std::string(param.param); });

}  // namespace
}  // namespace mortise
