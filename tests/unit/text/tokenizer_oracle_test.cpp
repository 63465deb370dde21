// Random texts in many scripts against the tokenizers wheel (tokenizer_oracle.py): 50,000, with MORTISE_LONG a million.
// MORTISE_ORACLES_PYTHON names the Python that has it; without it the test is skipped, aloud.
#include <gtest/gtest-spi.h>

#include <cstdlib>

#include "foundation/base/text.h"
#include "text_test_support.h"

namespace mortise {
namespace {

using testing_text::golden;
using testing_text::ids_of;

// Every piece is whole characters. Joined they are what decode gives, where `exact` (bytes that fall back are shown
// before it is known whether their run is whole).
void expect_stream(const Tokenizer& tokenizer, const std::vector<int64_t>& ids, bool exact) {
  IncrementalDecoder decoder = tokenizer.incremental_decoder();
  std::string joined;
  for (const int64_t id : ids) {
    const std::string piece = decoder.push(id);
    ASSERT_FALSE(find_invalid_utf8(piece)) << Json(ids).dump();
    joined += piece;
  }
  const std::string rest = decoder.finish();
  ASSERT_FALSE(find_invalid_utf8(rest)) << Json(ids).dump();
  joined += rest;
  if (exact) {
    ASSERT_EQ(joined, tokenizer.decode(ids)) << Json(ids).dump();
  }
}

void expect_row(const Tokenizer& tokenizer, const Json& row, bool falls_back) {
  const auto& text = row["text"].get_ref<const std::string&>();
  const auto ids = tokenizer.encode(text, row["special"].get<bool>());
  ASSERT_TRUE(ids.ok()) << ids.error().to_string() << row["text"].dump();
  ASSERT_EQ(*ids, ids_of(row["ids"])) << row["text"].dump();
  ASSERT_EQ(tokenizer.decode(*ids), row["decoded"].get_ref<const std::string&>()) << row["text"].dump();
  ASSERT_EQ(tokenizer.decode(*ids, true), row["skip"].get_ref<const std::string&>()) << row["text"].dump();
  const std::vector<int64_t> any = ids_of(row["any_ids"]);
  ASSERT_EQ(tokenizer.decode(any), row["any_decoded"].get_ref<const std::string&>()) << row["any_ids"].dump();
  expect_stream(tokenizer, *ids, true);
  expect_stream(tokenizer, any, !falls_back);
}

// Number of rows that differ; the first few are shown.
int64_t count_different(const Tokenizer& tokenizer, const Path& rows, bool falls_back, int64_t& total) {
  auto reader = JsonlReader::open(default_env(), rows);
  EXPECT_TRUE(reader.ok());
  int64_t different = 0;
  while (reader.ok()) {
    auto row = reader->next();
    EXPECT_TRUE(row.ok());
    if (!row.ok() || !row->has_value()) break;
    ++total;
    testing::TestPartResultArray results;
    {
      testing::ScopedFakeTestPartResultReporter reporter(
          testing::ScopedFakeTestPartResultReporter::INTERCEPT_ONLY_CURRENT_THREAD, &results);
      expect_row(tokenizer, (*row)->value, falls_back);
    }
    if (results.size() == 0) continue;
    if (++different <= 5) ADD_FAILURE() << rows << ": " << results.GetTestPartResult(0).message();
  }
  return different;
}

TEST(TokenizerOracle, RandomTextsGiveTheSame) {
  const char* const python = std::getenv("MORTISE_ORACLES_PYTHON");
  if (python == nullptr || *python == '\0')
    GTEST_SKIP() << "MORTISE_ORACLES_PYTHON is not set: the tokenizers wheel did not judge the tokenizers";
  const int64_t count = std::getenv("MORTISE_LONG") != nullptr ? 1'000'000 : 50'000;
  const test::TempDir dir;
  std::string command = "HF_HUB_OFFLINE=1 RUST_BACKTRACE=0 '" + std::string(python) + "' '" +
                        (Path(MORTISE_SOURCE_DIR) / "tests/unit/text/tokenizer_oracle.py").string() + "' '" +
                        (dir / "rows").string() + "' " + std::to_string(count) + " 20261122";
  const Path folders = golden("tokenizers");
  const std::vector<std::string> names = *default_env().list_dir(folders);
  for (const std::string& name : names) {
    if (default_env().exists(folders / name / "cases.jsonl")) command += " '" + (folders / name).string() + "'";
  }
  ASSERT_EQ(std::system(command.c_str()), 0) << command;
  int64_t total = 0;
  const std::vector<std::string> made = *default_env().list_dir(dir / "rows");
  for (const std::string& name : made) {
    const auto tokenizer = Tokenizer::load(dir / "rows" / name);
    ASSERT_TRUE(tokenizer.ok()) << tokenizer.error().to_string();
    const bool falls_back = tokenizer->token_id("<0x00>").has_value();
    EXPECT_EQ(count_different(*tokenizer, dir / "rows" / name / "rows.jsonl", falls_back, total), 0) << name;
  }
  EXPECT_GE(total, count);
}

}  // namespace
}  // namespace mortise
