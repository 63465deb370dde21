// Parquet and Arrow files that pyarrow and datasets wrote: the same rows as these libraries read, type by type; damaged
// files. MORTISE_ORACLES_PYTHON names the Python that has them; without it the tests are skipped and say so.
#include <gmock/gmock.h>

#include <cstdlib>

#include "foundation/base/rng.h"
#include "foundation/base/text.h"
#include "foundation/formats/jsonl.h"
#include "foundation/formats/rows/data_files.h"
#include "foundation/formats/rows/row_reader.h"
#include "support/temp_dir.h"

namespace mortise {
namespace {

using test::error_of;
using ::testing::HasSubstr;
using ::testing::StartsWith;

constexpr const char* kNoOracle = "MORTISE_ORACLES_PYTHON is not set: pyarrow and datasets did not write files";

// The folder that arrow_oracle.py filled, once for all tests; empty without the Python.
const Path& arrow_files() {
  static const test::TempDir dir;
  static const Path filled = [] {
    const char* python = std::getenv("MORTISE_ORACLES_PYTHON");
    if (python == nullptr || *python == '\0') return Path();
    const std::string command = "HF_HUB_OFFLINE=1 '" + std::string(python) + "' '" + MORTISE_SOURCE_DIR +
                                "/tests/unit/foundation/arrow_oracle.py' '" + dir.path().string() + "' > '" +
                                (dir / "log").string() + "' 2>&1";
    if (std::system(command.c_str()) != 0) {
      ADD_FAILURE() << command << "\n" << dir.read("log");
      return Path();
    }
    return dir.path();
  }();
  return filled;
}

std::vector<Json> rows_of_file(const Path& path) {
  std::vector<Json> out;
  const auto files = expand_data_files(default_env(), path.string(), "data.train_files");
  EXPECT_OK(files);
  for (const Path& file : files.ok() ? *files : std::vector<Path>()) {
    auto reader = open_rows(default_env(), file);
    EXPECT_OK(reader);
    if (!reader.ok()) return out;
    while (true) {
      const auto row = (*reader)->next();
      EXPECT_OK(row);
      if (!row.ok() || !row->has_value()) break;
      auto value = (*reader)->parse(**row);
      EXPECT_OK(value);
      out.push_back(value.ok() ? *std::move(value) : Json());
    }
  }
  return out;
}

std::vector<Json> rows_of_oracle(const Path& path) {
  std::vector<Json> out;
  auto reader = JsonlReader::open(default_env(), path.string() + ".rows").value();
  while (auto row = reader.next().value()) out.push_back(std::move(row->value));
  return out;
}

TEST(ArrowRows, AreThoseThatPyarrowAndDatasetsRead) {
  const Path& folder = arrow_files();
  if (folder.empty()) GTEST_SKIP() << kNoOracle;
  const std::string names = *default_env().read_file(folder / "names.txt");
  int num_files = 0;
  for (const std::string_view name : split(trim(names), '\n')) {
    ++num_files;
    const std::vector<Json> rows = rows_of_file(folder / name), expected = rows_of_oracle(folder / name);
    ASSERT_EQ(rows.size(), expected.size()) << name;
    for (size_t i = 0; i < rows.size(); ++i) {
      if (rows[i] == expected[i]) continue;
      for (const auto& [key, value] : expected[i].items())
        EXPECT_EQ(dump_json(rows[i][key]), dump_json(value)) << name << ", row " << i << ", " << key;
      ASSERT_EQ(rows[i], expected[i]) << name << ", row " << i;
    }
  }
  EXPECT_EQ(num_files, 24);
}

TEST(ArrowRows, NameTheirRowAndSkipParts) {
  const Path& folder = arrow_files();
  if (folder.empty()) GTEST_SKIP() << kNoOracle;
  for (const char* name : {"nested_zstd.parquet", "nested.arrow", "nested_stream.arrow"}) {  // 7 or 5 rows a part
    const std::vector<Json> all = rows_of_oracle(folder / name);
    for (int64_t first = 0; first < 3; ++first) {
      for (int64_t skipped = 0; skipped < 20; ++skipped) {
        ASSERT_OK_AND_ASSIGN(auto reader, open_rows(default_env(), folder / name));
        for (int64_t i = 0; i < first; ++i) ASSERT_OK(reader->next());
        ASSERT_OK_AND_ASSIGN(const int64_t num, reader->skip(skipped));
        EXPECT_EQ(num, std::min<int64_t>(skipped, 17 - first)) << name;
        ASSERT_OK_AND_ASSIGN(const auto row, reader->next());
        ASSERT_EQ(row.has_value(), first + skipped < 17) << name << " " << first << " " << skipped;
        if (!row) continue;
        EXPECT_EQ(row->number, first + skipped + 1);
        EXPECT_EQ(reader->place(row->number), (folder / name).string() + ":row " + std::to_string(first + skipped + 1));
        EXPECT_EQ(*reader->parse(*row), all[static_cast<size_t>(first + skipped)]);
      }
    }
  }
}

// Flipped bytes and cut files end in an error or in other rows, never in a crash.
TEST(ArrowRows, DamagedFilesAreErrors) {
  const Path& folder = arrow_files();
  if (folder.empty()) GTEST_SKIP() << kNoOracle;
  const test::TempDir dir;
  RandomStream random({20261123, RandomPurpose::kTest});
  for (const char* name : {"nested_none.parquet", "scalars_snappy.parquet", "nested.arrow", "scalars_stream.arrow"}) {
    const std::string bytes = *default_env().read_file(folder / name);
    int num_errors = 0;
    constexpr int kTries = 150;
    for (int i = 0; i < kTries; ++i) {
      std::string bad = bytes;
      if (i % 3 == 0) bad.resize(random.next_below(bad.size()));
      for (uint64_t flips = i % 3 == 0 ? 0 : 1 + random.next_below(4); flips > 0; --flips)
        bad[random.next_below(bad.size())] = static_cast<char>(random.next_u32());
      const Path path = dir.write(name, bad);
      auto reader = open_rows(default_env(), path);
      bool ended = !reader.ok();
      num_errors += ended ? 1 : 0;
      while (!ended) {
        const auto row = (*reader)->next();
        num_errors += row.ok() ? 0 : 1;
        ended = !row.ok() || !row->has_value();
        if (!ended) (void)(*reader)->parse(**row);
      }
    }
    EXPECT_GT(num_errors, kTries / 3 - 5) << name;
  }
}

TEST(ArrowRows, ErrorsNameTheFile) {
  const test::TempDir dir;
  const Path path = dir.write("d.parquet", "PAR1 and nothing else");
  EXPECT_THAT(error_of(open_rows(default_env(), path)),
              AllOf(StartsWith(path.string() + ": the file cannot be read: "), HasSubstr("Parquet")));
  const Path empty = dir.write("d.arrow", "");
  EXPECT_THAT(error_of(open_rows(default_env(), empty)), StartsWith(empty.string() + ": the file cannot be read: "));
  const Path gzip = dir.write("d.parquet.gz", "\x1f\x8b\x08");
  EXPECT_FALSE(open_rows(default_env(), gzip).ok());
}

}  // namespace
}  // namespace mortise
