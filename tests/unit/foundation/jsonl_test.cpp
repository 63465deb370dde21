// JSONL files: bad lines, full disks, and rows that survive a killed run.
#include "foundation/formats/jsonl.h"

#include <gmock/gmock.h>

#include <filesystem>

#include "support/fault_env.h"
#include "support/temp_dir.h"

namespace mortise {
namespace {

using test::error_of;
using ::testing::HasSubstr;
using ::testing::StartsWith;

std::vector<int64_t> lines_of(const Path& path) {
  std::vector<int64_t> lines;
  auto reader = JsonlReader::open(default_env(), path);
  EXPECT_OK(reader);
  while (true) {
    auto row = reader->next();
    EXPECT_OK(row);
    if (!row.ok() || !row->has_value()) return lines;
    lines.push_back((*row)->line);
  }
}

TEST(Jsonl, ReadsRowsWithPlaces) {
  const test::TempDir dir;
  const Path path = dir.write("d.jsonl", "\xEF\xBB\xBF{\"a\":1}\r\n\n   \n{\"a\":2}");
  ASSERT_OK_AND_ASSIGN(JsonlReader reader, JsonlReader::open(default_env(), path));
  auto first = reader.next();
  ASSERT_OK(first);
  EXPECT_EQ((*first)->value["a"], 1);
  auto second = reader.next();
  ASSERT_OK(second);
  EXPECT_EQ((*second)->line, 4);
  EXPECT_EQ((*second)->offset, 17u);
  EXPECT_EQ((*second)->text, "{\"a\":2}");
  auto end = reader.next();
  ASSERT_OK(end);
  EXPECT_FALSE(end->has_value());
}

TEST(Jsonl, BadLinesAreNamedAndCanBePassedOver) {
  const test::TempDir dir;
  const Path path = dir.write("d.jsonl", "{\"a\":1}\n{\"a\":\n{\"a\":\"\xFF\"}\n{\"a\":4}\n{\"b\":1,\"b\":2}\n");
  ASSERT_OK_AND_ASSIGN(JsonlReader reader, JsonlReader::open(default_env(), path));
  ASSERT_OK(reader.next());
  EXPECT_THAT(error_of(reader.next()), StartsWith(path.string() + ":2:6:"));
  EXPECT_THAT(error_of(reader.next()), AllOf(StartsWith(path.string() + ":3:7:"), HasSubstr("not UTF-8 at byte 20")));
  auto row = reader.next();
  ASSERT_OK(row);
  EXPECT_EQ((*row)->value["a"], 4);
  EXPECT_THAT(error_of(reader.next()), HasSubstr("duplicate key 'b'"));
}

TEST(Jsonl, DeeplyNestedRowsAreNamedAndCanBePassedOver) {
  const test::TempDir dir;
  const std::string deep = std::string(300'000, '[');
  const Path path = dir.write("d.jsonl", "{\"a\":" + deep + "\n" + deep + std::string(300'000, ']') + "\n{\"a\":3}\n");
  ASSERT_OK_AND_ASSIGN(JsonlReader reader, JsonlReader::open(default_env(), path));
  for (const char* line : {":1:", ":2:"})
    EXPECT_THAT(error_of(reader.next()),
                AllOf(StartsWith(path.string() + line), HasSubstr("nested deeper than 128 levels")));
  EXPECT_OK(reader.next());
}

TEST(Jsonl, NulBytesAreRefused) {
  const test::TempDir dir;
  const Path path = dir.write("d.jsonl", std::string("{\"a\":\"\0\"}\n", 11));
  ASSERT_OK_AND_ASSIGN(JsonlReader reader, JsonlReader::open(default_env(), path));
  EXPECT_FALSE(reader.next().ok());
}

TEST(Jsonl, EmptyFile) {
  const test::TempDir dir;
  EXPECT_TRUE(lines_of(dir.write("d.jsonl", "")).empty());
}

TEST(Jsonl, WritesAndAppends) {
  const test::TempDir dir;
  for (int i = 1; i <= 2; ++i) {
    ASSERT_OK_AND_ASSIGN(JsonlWriter writer,
                         JsonlWriter::open(default_env(), dir / "m.jsonl", {.append = true, .sync_each = i == 2}));
    ASSERT_OK(writer.write(Json{{"step", i}, {"text", "a\nb"}}));
    ASSERT_OK(writer.close());
  }
  EXPECT_EQ(dir.read("m.jsonl"), "{\"step\":1,\"text\":\"a\\nb\"}\n{\"step\":2,\"text\":\"a\\nb\"}\n");
  ASSERT_OK_AND_ASSIGN(JsonlWriter fresh, JsonlWriter::open(default_env(), dir / "m.jsonl", {.append = false}));
  EXPECT_EQ(dir.read("m.jsonl"), "");
}

TEST(Jsonl, AFullDiskIsToldAtTheRow) {
  const test::TempDir dir;
  test::FaultEnv env(default_env());
  env.disk_full_after(15);
  ASSERT_OK_AND_ASSIGN(JsonlWriter writer, JsonlWriter::open(env, dir / "m.jsonl"));
  ASSERT_OK(writer.write(Json{{"step", 1}}));
  EXPECT_THAT(error_of(writer.write(Json{{"step", 2}})), HasSubstr("the disk is full"));
}

TEST(NewJsonlFile, AppearsWholeOrNotAtAll) {
  const test::TempDir dir;
  const Path path = dir.path() / "out.jsonl";
  const auto names = [&] { return default_env().list_dir(dir.path()).value(); };
  {
    auto file = NewJsonlFile::create(default_env(), path);
    ASSERT_TRUE(file.ok());
    ASSERT_TRUE(file->write(Json{{"a", 1}}).ok());
    EXPECT_FALSE(default_env().exists(path));
  }
  EXPECT_EQ(names().size(), 0U);  // not committed: nothing remains
  ASSERT_TRUE(write_file(default_env(), path, "old\n").ok());
  std::filesystem::create_symlink("out.jsonl", dir.path() / "link");
  auto file = NewJsonlFile::create(default_env(), dir.path() / "link");
  ASSERT_TRUE(file.ok());
  ASSERT_TRUE(file->write(Json{{"a", 2}}).ok());
  EXPECT_EQ(default_env().read_file(path).value(), "old\n");
  ASSERT_TRUE(file->commit().ok());
  EXPECT_EQ(default_env().read_file(path).value(), "{\"a\":2}\n");
  EXPECT_TRUE(std::filesystem::is_symlink(dir.path() / "link"));
  EXPECT_EQ(names().size(), 2U);
  const auto missing = NewJsonlFile::create(default_env(), dir.path() / "no/such");
  ASSERT_FALSE(missing.ok());
  EXPECT_EQ(missing.error().where, (dir.path() / "no/such").string());
  auto device = NewJsonlFile::create(default_env(), "/dev/null");
  ASSERT_TRUE(device.ok());
  EXPECT_TRUE(device->write(Json{{"a", 3}}).ok());
  EXPECT_TRUE(device->commit().ok());
}

TEST(NewJsonlFile, DearRowsStayWhereTheRunDied) {
  const test::TempDir dir;
  const Path path = dir.path() / "out.jsonl";
  const Path partial = dir.path() / "out.jsonl.partial";
  for (const bool has_rows : {false, true}) {
    {
      auto file = NewJsonlFile::create(default_env(), path, NewJsonlFile::Unfinished::kKept);
      ASSERT_TRUE(file.ok());
      EXPECT_EQ(file->temporary(), partial);
      if (has_rows) {
        ASSERT_TRUE(file->write(Json{{"a", 1}}).ok());
        EXPECT_EQ(default_env().read_file(partial).value(), "{\"a\":1}\n");  // a killed process leaves it too
      }
    }
    EXPECT_EQ(default_env().exists(partial), has_rows);
    EXPECT_FALSE(default_env().exists(path));
  }
  auto file = NewJsonlFile::create(default_env(), path, NewJsonlFile::Unfinished::kKept);
  ASSERT_TRUE(file.ok());
  ASSERT_TRUE(file->write(Json{{"a", 2}}).ok());
  ASSERT_TRUE(file->commit().ok());
  EXPECT_EQ(default_env().read_file(path).value(), "{\"a\":2}\n");
  EXPECT_FALSE(default_env().exists(partial));
}

TEST(KeepJsonlRows, DropsWhatALaterStepOrACrashLeft) {
  const test::TempDir dir;
  const Path path = dir.write("m.jsonl", "{\"step\":1}\n{\"step\":2}\n{\"step\":3}\n{\"st");
  ASSERT_OK_AND_ASSIGN(KeptRows rows, keep_jsonl_rows(default_env(), path, "step", 2));
  EXPECT_EQ(rows.num_dropped, 2);
  EXPECT_EQ(rows.last_key, 2);
  EXPECT_EQ(dir.read("m.jsonl"), "{\"step\":1}\n{\"step\":2}\n");
  EXPECT_EQ(keep_jsonl_rows(default_env(), path, "step", 2)->num_dropped, 0);
  EXPECT_EQ(keep_jsonl_rows(default_env(), dir / "none.jsonl", "step", 2)->last_key, std::nullopt);
  // A row without its newline is complete JSON: kept, with its newline.
  dir.write("m.jsonl", "{\"step\":1}");
  EXPECT_EQ(keep_jsonl_rows(default_env(), path, "step", 9)->num_dropped, 0);
  EXPECT_EQ(dir.read("m.jsonl"), "{\"step\":1}\n");
  EXPECT_THAT(*default_env().list_dir(dir.path()), testing::ElementsAre("m.jsonl"));
}

// After a power loss: zeros, half a line, a row without its key. The readable rows remain, and so does a copy of the
// old file.
TEST(KeepJsonlRows, ADamagedLineSetsTheFileAside) {
  const test::TempDir dir;
  const std::string one = "{\"step\":1}\n", two = "{\"step\":2}\n";
  const std::string zeros = std::string(20, '\0') + "\n";
  for (const std::string& bad :
       {zeros, std::string("{\"step\":7,\"lo\n"), std::string("[1]\n"), std::string("{\"stop\":3}\n"),
        std::string("{\"step\":1.5}\n"), std::string("{\"step\":1,\"a\":\"\xFF\"}\n")}) {
    const std::string all = one + bad + two + "{\"step\":3}\n{\"st";
    const Path path = dir.write("m.jsonl", all);
    ASSERT_OK_AND_ASSIGN(const KeptRows rows, keep_jsonl_rows(default_env(), path, "step", 2));
    EXPECT_EQ(rows.num_damaged, 1) << bad;
    EXPECT_EQ(rows.first_damaged_line, 2) << bad;
    EXPECT_EQ(rows.num_dropped, 2) << bad;
    EXPECT_EQ(default_env().read_file(rows.set_aside).value(), all);
    EXPECT_EQ(dir.read("m.jsonl"), one + two);
  }
  EXPECT_TRUE(default_env().exists(dir / "m.jsonl.damaged_6"));
}

// At every failing call the rows are in the file, damaged line or not.
TEST(KeepJsonlRows, ADiskThatFailsLosesNoRow) {
  const std::string all = "{\"step\":1}\n" + std::string(9, '\0') + "\n{\"step\":2}\n";
  for (int64_t k = 1;; ++k) {
    const test::TempDir dir;
    const Path path = dir.write("m.jsonl", all);
    test::FaultEnv env(default_env());
    env.fail_at(k, ENOSPC);
    const auto rows = keep_jsonl_rows(env, path, "step", 2);
    if (!rows.ok()) {
      EXPECT_EQ(rows.error().kind, ErrorKind::kDisk);
      const std::string left = dir.read("m.jsonl");
      EXPECT_TRUE(left == all || left == "{\"step\":1}\n{\"step\":2}\n") << k << ": " << left;
      continue;
    }
    EXPECT_GT(k, 6);
    break;
  }
}

// A hole of 10 GB: no line of it is read to its end, and the row behind a line that is too long is found.
TEST(Jsonl, ALineThatIsTooLongIsNotReadToItsEnd) {
  const test::TempDir dir;
  const Path path = dir.write("d.jsonl", "");
  std::filesystem::resize_file(path, uintmax_t{10} << 30);
  ASSERT_OK_AND_ASSIGN(JsonlReader huge, JsonlReader::open(default_env(), path));
  EXPECT_THAT(error_of(huge.next()), HasSubstr("d.jsonl:1: the line has more than the 67108864 bytes allowed"));

  dir.write("d.jsonl", std::string((size_t{64} << 20) + 9, 'x') + "\n{\"a\":2}\n");
  ASSERT_OK_AND_ASSIGN(JsonlReader reader, JsonlReader::open(default_env(), path));
  EXPECT_THAT(error_of(reader.next()), HasSubstr("d.jsonl:1: the line has more than"));
  const auto row = reader.next();
  ASSERT_OK(row);
  EXPECT_EQ((*row)->line, 2);
  EXPECT_EQ((*row)->value["a"], 2);
  EXPECT_FALSE(reader.next()->has_value());
}

}  // namespace
}  // namespace mortise
