// Random texts in many scripts against the tokenizers wheel (tokenizer_oracle.py): 20,000, with MORTISE_LONG a million.
// MORTISE_ORACLES_PYTHON names the Python that has it; without it the test is skipped and says so.
#include <gtest/gtest-spi.h>

#include <algorithm>

#include "foundation/base/text.h"
#include "support/this_build.h"
#include "text/tokenizer/regex.h"
#include "text/unicode/utf8.h"
#include "text_test_support.h"

namespace mortise {
namespace {

using testing_text::golden_folders;
using testing_text::ids_of;
using testing_text::is_long;
using testing_text::oracle_command;

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

// Which characters of write_classes (in the script) a regular expression matches, as [first, last]. One block at a
// time, because a group that repeats without end needs stack for each repetition.
Json runs_of(const Regex& regex) {
  std::vector<uint32_t> codes;
  for (const auto& [first, end] : {std::pair(0x1U, 0xD800U), std::pair(0xE000U, 0xE200U), std::pair(0xF900U, 0x32400U),
                                   std::pair(0xE0000U, 0xE0200U)}) {
    for (uint32_t code = first; code < end; ++code) codes.push_back(code);
  }
  Json runs = Json::array();
  bool goes_on = false;  // the last match ends with its block
  constexpr size_t kBlock = 0x4000;
  for (size_t block = 0; block < codes.size(); block += kBlock) {
    std::string text;
    const size_t end = std::min(block + kBlock, codes.size());
    for (size_t i = block; i < end; ++i) append_utf8(text, codes[i]);
    std::vector<TextSpan> spans;
    EXPECT_OK(regex.find_all(text, spans));
    size_t counted_bytes = 0, counted = block;  // spans are in the order of the text: each character is counted once
    const auto index_at = [&](size_t byte) {
      counted += unicode::count_code_points(std::string_view(text).substr(counted_bytes, byte - counted_bytes));
      counted_bytes = byte;
      return counted;
    };
    for (const TextSpan& span : spans) {
      const size_t first = index_at(span.begin);
      const size_t last = index_at(span.end) - 1;
      if (goes_on && first == block) {
        runs.back()[1] = codes[last];
      } else {
        runs.push_back({codes[first], codes[last]});
      }
      goes_on = false;
    }
    goes_on = !spans.empty() && spans.back().end == text.size();
  }
  return runs;
}

void expect_classes(const Path& file) {
  for (const Json& row : testing_text::read_rows(file)) {
    const auto pattern = row["pattern"].get<std::string>();
    const auto regex = Regex::compile("(?:" + pattern + ")+", "test");
    ASSERT_OK(regex);
    const Json runs = runs_of(*regex);
    const Json& want = row["runs"];
    if (runs == want) continue;
    const auto differ = std::mismatch(runs.begin(), runs.end(), want.begin(), want.end());
    ADD_FAILURE() << pattern << ": " << (differ.first == runs.end() ? Json() : *differ.first)
                  << ", the wheel: " << (differ.second == want.end() ? Json() : *differ.second);
  }
}

TEST(TokenizerOracle, RandomTextsGiveTheSame) {
  const std::string oracle = oracle_command("tokenizer_oracle.py");
  if (oracle.empty())
    GTEST_SKIP() << "MORTISE_ORACLES_PYTHON is not set: the tokenizers wheel did not judge the tokenizers";
  const int64_t count = is_long() ? 1'000'000 : test::kSanitized ? 5'000 : 20'000;
  const test::TempDir dir;
  const std::string command =
      oracle + " '" + (dir / "rows").string() + "' " + std::to_string(count) + " 20261122" + golden_folders();
  ASSERT_EQ(std::system(command.c_str()), 0) << command;
  expect_classes((dir / "rows").string() + ".classes.jsonl");
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
