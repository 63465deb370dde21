// components.jsonl: small random tokenizers of all supported components against what the tokenizers library gave.
#include "text_test_support.h"

namespace mortise {
namespace {

using testing_text::golden;
using testing_text::ids_of;
using testing_text::read_rows;

TEST(TokenizerComponents, EncodeAndDecodeAsTheLibrary) {
  const test::TempDir dir;
  for (const Json& row : read_rows(golden("components.jsonl"))) {
    const auto spec = row["tokenizer"].get<std::string>();
    dir.write("tokenizer.json", spec);
    const auto tokenizer = Tokenizer::load(dir.path());
    ASSERT_TRUE(tokenizer.ok()) << tokenizer.error().to_string();
    for (const Json& one : row["cases"]) {
      SCOPED_TRACE(one.dump() + "\n" + spec.substr(0, 3000));
      const auto ids = tokenizer->encode(one["text"].get<std::string>(), one["special"].get<bool>());
      ASSERT_TRUE(ids.ok()) << ids.error().to_string();
      EXPECT_EQ(*ids, ids_of(one["ids"]));
      EXPECT_EQ(tokenizer->decode(ids_of(one["ids"]), false), one["decoded"].get<std::string>());
      EXPECT_EQ(tokenizer->decode(ids_of(one["ids"]), true), one["skip"].get<std::string>());
    }
  }
}

// A stream does not take back whole characters that a run of <0xNN> tokens has shown, so only runs that end well must
// agree.
TEST(TokenizerComponents, StreamedPiecesJoinToTheDecodedText) {
  const test::TempDir dir;
  size_t num_compared = 0;
  for (const Json& row : read_rows(golden("components.jsonl"))) {
    dir.write("tokenizer.json", row["tokenizer"].get<std::string>());
    const auto tokenizer = Tokenizer::load(dir.path());
    ASSERT_TRUE(tokenizer.ok());
    for (const Json& one : row["cases"]) {
      const auto ids = ids_of(one["ids"]);
      IncrementalDecoder decoder = tokenizer->incremental_decoder();
      std::string joined;
      for (const int64_t id : ids) joined += decoder.push(id);
      joined += decoder.finish();
      EXPECT_EQ(joined, one["decoded"].get<std::string>()) << one.dump();
      ++num_compared;
    }
  }
  EXPECT_GT(num_compared, 500U);
}

}  // namespace
}  // namespace mortise
