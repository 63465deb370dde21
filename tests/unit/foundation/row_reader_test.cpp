// Rows of JSONL, JSON and CSV files, plain and compressed: their texts, their places, and what is refused.
#include "foundation/formats/rows/row_reader.h"

#include <gmock/gmock.h>
#include <zlib.h>
#include <zstd.h>

#include "foundation/formats/rows/byte_stream.h"
#include "support/temp_dir.h"

namespace mortise {
namespace {

using test::error_of;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::StartsWith;

std::string gzip_of(std::string_view text) {
  z_stream state{};
  EXPECT_EQ(::deflateInit2(&state, 6, Z_DEFLATED, 15 + 16, 8, Z_DEFAULT_STRATEGY), Z_OK);
  std::string out(::deflateBound(&state, text.size()) + 64, '\0');
  state.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(text.data()));
  state.avail_in = static_cast<uInt>(text.size());
  state.next_out = reinterpret_cast<Bytef*>(out.data());
  state.avail_out = static_cast<uInt>(out.size());
  EXPECT_EQ(::deflate(&state, Z_FINISH), Z_STREAM_END);
  out.resize(state.total_out);
  ::deflateEnd(&state);
  return out;
}

std::string zstd_of(std::string_view text) {
  std::string out(::ZSTD_compressBound(text.size()), '\0');
  out.resize(::ZSTD_compress(out.data(), out.size(), text.data(), text.size(), 3));
  return out;
}

class RowReaderTest : public ::testing::Test {
 protected:
  // "number: JSON" of each row; an error that ends a row or the file as its text without the folder.
  std::vector<std::string> rows_of(std::string_view name, std::string_view bytes,
                                   const RowReaderOptions& options = {}) {
    std::vector<std::string> out;
    auto reader = open_rows(default_env(), dir_.write(name, bytes), options);
    if (!reader.ok()) return {without_folder(reader.error())};
    while (true) {
      const auto row = (*reader)->next();
      if (!row.ok()) {
        out.push_back(without_folder(row.error()));
        return out;
      }
      if (!row->has_value()) return out;
      const auto value = (*reader)->parse(**row);
      out.push_back(value.ok() ? std::to_string((*row)->number) + " " + dump_json(*value)
                               : without_folder(value.error()));
    }
  }
  [[nodiscard]] std::string without_folder(const Error& error) const {
    const std::string text = error.where + ": " + error.what, folder = dir_.path().string() + "/";
    return text.starts_with(folder) ? text.substr(folder.size()) : text;
  }
  test::TempDir dir_;
};

TEST_F(RowReaderTest, JsonlContinuesAfterABadLine) {
  EXPECT_THAT(rows_of("d.jsonl", "\xEF\xBB\xBF{\"a\":1}\r\n\n  \n{\"a\":\n{\"a\":\"\xFF\"}\n{\"a\":2}"),
              ElementsAre("1 {\"a\":1}", StartsWith("d.jsonl:4:6: "), "d.jsonl:5:7: not UTF-8", "6 {\"a\":2}"));
  EXPECT_THAT(rows_of("empty.jsonl", ""), ElementsAre());
}

TEST_F(RowReaderTest, IntegersThatNothingHoldsExactlyAreBadRows) {
  const std::string large = "123456789012345678901234567890";
  EXPECT_THAT(rows_of("a.jsonl", "{\"x\":18446744073709551615}\n{\"x\":[" + large + "]}\n{\"x\":-" + large + "}\n" +
                                     "{\"x\":1e40,\"y\":\"" + large + "\"}\n"),
              ElementsAre("1 {\"x\":18446744073709551615}",
                          "a.jsonl:2:37: the integer " + large + " has more than 64 bits; write it in quotes, as text",
                          "a.jsonl:3:37: the integer -" + large + " has more than 64 bits; write it in quotes, as text",
                          "4 {\"x\":1e+40,\"y\":\"" + large + "\"}"));
  RowReaderOptions options;
  options.cells = {{"x", CellType::kJson}};
  EXPECT_THAT(rows_of("a.csv", "x\n" + large + "\n", options), ElementsAre(HasSubstr(large)));
}

TEST_F(RowReaderTest, EndlessLinesAreOneBadRow) {
  const std::string endless(size_t{65} << 20, 'x');
  EXPECT_THAT(rows_of("d.jsonl", "{\"a\":1}\n" + endless + "\n{\"a\":3}\n"),
              ElementsAre("1 {\"a\":1}", "d.jsonl:2: the row has more than the 67108864 bytes allowed", "3 {\"a\":3}"));
  EXPECT_THAT(rows_of("d.csv", "a\n\"" + endless), ElementsAre("d.csv:2: a quoted cell is not closed within 64 MiB"));
  EXPECT_THAT(rows_of("d.csv", "a\n" + endless),
              ElementsAre("d.csv:2: the row has more than the 67108864 bytes allowed"));
  EXPECT_THAT(rows_of("d.json", "[\"" + endless + "\"]"),
              ElementsAre("d.json:1: the row has more than the 67108864 bytes allowed"));
}

TEST_F(RowReaderTest, TheContentOfJsonFilesDecides) {
  EXPECT_THAT(rows_of("d.json", "{\"a\":1}\n{\"a\":2}\n"), ElementsAre("1 {\"a\":1}", "2 {\"a\":2}"));
  EXPECT_THAT(rows_of("d.json", " [ {\"a\": \"],\\\"[\"},\n\n  {\"b\": [1, {\"c\": 2}]} , 3\n]\n"),
              ElementsAre("1 {\"a\":\"],\\\"[\"}", "3 {\"b\":[1,{\"c\":2}]}", "3 3"));
  EXPECT_THAT(rows_of("d.json", "[]"), ElementsAre());
  EXPECT_THAT(rows_of("d.txt", "[{\"a\":1}]"), ElementsAre("1 {\"a\":1}"));
}

TEST_F(RowReaderTest, FaultsOfArraysNameTheirPlace) {
  EXPECT_THAT(rows_of("d.json", "[{\"a\":1},\n {\"a\":tru}]"), ElementsAre("1 {\"a\":1}", StartsWith("d.json:2:10: ")));
  EXPECT_THAT(rows_of("d.json", "[1 2]"), ElementsAre(StartsWith("d.json:1:4: ")));
  EXPECT_THAT(rows_of("d.json", "[1, 2"), ElementsAre("1 1", "d.json:1:6: the JSON array is not closed"));
  EXPECT_THAT(rows_of("d.json", "[1,,2]"), ElementsAre("1 1", "d.json:1:4: the array has an element without a value"));
  EXPECT_THAT(rows_of("d.json", "[1,]"), ElementsAre("1 1", "d.json:1:4: the array has an element without a value"));
  EXPECT_THAT(rows_of("d.json", "[1] x"),
              ElementsAre("1 1", "d.json:1:4: there is text behind the end of the JSON array"));
  EXPECT_THAT(rows_of("d.json", "[1}"),
              ElementsAre("1 1", "d.json:1:3: expected ',' or ']' between the elements of the array"));
}

TEST_F(RowReaderTest, CsvCellsAreTextsUnlessTheyAreDeclared) {
  const std::string text = "id,say,n\r\n007,\"a, \"\"b\"\"\nc\",1.50\r\n8,,\"\"\n\n9,5\" pipe,x";
  EXPECT_THAT(rows_of("d.csv", text), ElementsAre("2 {\"id\":\"007\",\"say\":\"a, \\\"b\\\"\\nc\",\"n\":\"1.50\"}",
                                                  "4 {\"id\":\"8\",\"say\":null,\"n\":\"\"}",
                                                  "6 {\"id\":\"9\",\"say\":\"5\\\" pipe\",\"n\":\"x\"}"));
  RowReaderOptions options;
  options.cells = {{"id", CellType::kInteger}, {"n", CellType::kNumber}};
  EXPECT_THAT(rows_of("d.csv", text, options),
              ElementsAre("2 {\"id\":7,\"say\":\"a, \\\"b\\\"\\nc\",\"n\":1.5}",
                          "d.csv:4: the column 'n' is declared as number, but holds ''",
                          "d.csv:6: the column 'n' is declared as number, but holds 'x'"));
  options.cells = {{"m", CellType::kJson}};
  EXPECT_THAT(rows_of("d.tsv", "m\tn\n[{\"role\": \"user\"}]\t\n[\t\n", options),
              ElementsAre("2 {\"m\":[{\"role\":\"user\"}],\"n\":null}",
                          "d.tsv:3: the column 'm' is declared as json, but holds '['"));
}

TEST_F(RowReaderTest, CsvFaultsNameTheLineOnWhichTheRowBegins) {
  EXPECT_THAT(rows_of("d.csv", "a,b\n1\n1,2,3\n\"x\ny\",\xFF\n4,5\n"),
              ElementsAre("d.csv:2: the row needs one cell per column of the header, but has 1 for 2",
                          "d.csv:3: the row needs one cell per column of the header, but has 3 for 2",
                          "d.csv:4: the cell of the column 'b' is not UTF-8", "6 {\"a\":\"4\",\"b\":\"5\"}"));
  EXPECT_THAT(rows_of("d.csv", "a\n\"1\"2\n"), ElementsAre("d.csv:2: a cell continues after its closing quote"));
  EXPECT_THAT(rows_of("d.csv", "a\nx\n\"1\n2\n"),
              ElementsAre("2 {\"a\":\"x\"}", "d.csv:3: a quoted cell is not closed"));
  EXPECT_THAT(rows_of("d.csv", ""), ElementsAre("d.csv:1: the file has no header line"));
  EXPECT_THAT(rows_of("d.csv", "a,a\n"), ElementsAre("d.csv:1: the header has the column 'a' twice"));
  const auto next_of = [this](std::string_view bytes) {
    return open_rows(default_env(), dir_.write("d.csv", bytes), {}).error().next;
  };
  EXPECT_EQ(next_of("a,a\n"), "rename one of the two");
  EXPECT_EQ(next_of("\xFF\xFE"
                    "a\n"),
            "convert the file to UTF-8")
      << "as in a file of UTF-16";
  EXPECT_THAT(rows_of("d.csv", ",x\n0,1\n"), ElementsAre("2 {\"Unnamed: 0\":\"0\",\"x\":\"1\"}")) << "pandas' index";
}

TEST_F(RowReaderTest, CompressedFilesHaveTheSameRows) {
  std::string text = "id,t\n";
  std::vector<std::string> expected;
  for (int i = 0; i < 20'000; ++i) {
    text += std::to_string(i) + ",\"row\n" + std::to_string(i * 7919 % 10'007) + "\"\n";
    expected.push_back(std::to_string(2 + 2 * i) + " {\"id\":\"" + std::to_string(i) + "\",\"t\":\"row\\n" +
                       std::to_string(i * 7919 % 10'007) + "\"}");
  }
  EXPECT_EQ(rows_of("d.csv", text), expected);
  EXPECT_EQ(rows_of("d.csv.gz", gzip_of(text)), expected);
  EXPECT_EQ(rows_of("d.csv.zst", zstd_of(text)), expected);
  EXPECT_EQ(rows_of("named_wrongly.csv", zstd_of(text)), expected) << "the first bytes decide";
  const std::string_view half = std::string_view(text).substr(0, text.size() / 2);
  const std::string_view rest = std::string_view(text).substr(half.size());
  EXPECT_EQ(rows_of("members.csv.gz", gzip_of(half) + gzip_of(rest)), expected) << "as cat a.gz b.gz";
  EXPECT_EQ(rows_of("members.csv.zst", zstd_of(half) + zstd_of(rest)), expected);
}

TEST_F(RowReaderTest, DamagedCompressedFilesAreErrors) {
  std::string text;
  for (int i = 0; i < 5000; ++i) text += "{\"a\":" + std::to_string(i * i) + "}\n";
  for (const auto& [name, bytes] :
       {std::pair(std::string("d.jsonl.gz"), gzip_of(text)), {"d.jsonl.zst", zstd_of(text)}}) {
    EXPECT_THAT(rows_of(name, std::string_view(bytes).substr(0, bytes.size() - 20)).back(),
                AllOf(StartsWith(name + ": "), HasSubstr("ends too early")));
    EXPECT_THAT(rows_of(name, bytes + "more").back(), StartsWith(name + ": the "));
    std::string flipped = bytes;
    flipped[flipped.size() / 2] ^= 0x20;
    EXPECT_FALSE(rows_of(name, flipped).back().starts_with("5000 "));
  }
}

TEST_F(RowReaderTest, DecompressionBombsAreRefused) {
  // Few long lines, which a build for sanitizers reads fast.
  std::string blank;
  for (int i = 0; i < 80; ++i) blank.append((1U << 20) - 1, ' ').push_back('\n');
  EXPECT_THAT(rows_of("d.jsonl.zst", zstd_of(blank)),
              ElementsAre("d.jsonl.zst: the file expands to more than 1000 times its size, which is no data set"));
  EXPECT_THAT(rows_of("d.jsonl.gz", gzip_of(blank)),
              ElementsAre("d.jsonl.gz: the file expands to more than 1000 times its size, which is no data set"));
}

TEST_F(RowReaderTest, SkippingIsReading) {
  std::string text;
  for (int i = 0; i < 100; ++i) text += "{\"a\":" + std::to_string(i) + "}\n\n";
  const Path path = dir_.write("d.jsonl", text);
  ASSERT_OK_AND_ASSIGN(auto reader, open_rows(default_env(), path));
  ASSERT_OK(reader->skip(42));
  ASSERT_OK_AND_ASSIGN(const auto row, reader->next());
  ASSERT_TRUE(row.has_value());
  EXPECT_EQ(row->number, 85);
  EXPECT_EQ(row->text, "{\"a\":42}");
  ASSERT_OK(reader->skip(1000));
  ASSERT_OK_AND_ASSIGN(const auto end, reader->next());
  EXPECT_FALSE(end.has_value());
}

}  // namespace
}  // namespace mortise
