// The container: what the writer makes, and every kind of archive that the reader refuses, by its rule.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdio>

#include "archive_maker.h"
#include "foundation/base/rng.h"
#include "support/cpu_time.h"

namespace mortise::test {
namespace {

using testing::AllOf;
using testing::HasSubstr;

const std::string kFirst = entry("pack.toml", "format = 1\n");

std::string archive_of(const std::string& entries) { return zstd(kFirst + entries + end_blocks()); }

std::vector<ArchiveFile> some_files() {
  return {{"tests/a.toml", "x"}, {"pack.toml", "format = 1\n"}, {"README.md", std::string(1000, 'r')}, {"empty", ""}};
}

// Every path with its bytes, or the error.
std::string contents(std::string_view archive) {
  std::string all;
  const auto read = read_archive(archive, "x",
                                 {[](std::string_view, uint64_t) { return true; },
                                  [&](ArchiveFile&& file) -> Result<> {
                                    all += file.path + "=" + file.bytes + ";";
                                    return {};
                                  }});
  return read.ok() ? all : "error " + read.error().to_string();
}

TEST(PackContainer, WhatIsWrittenIsRead) {
  ASSERT_OK_AND_ASSIGN(const std::string archive, write_archive(some_files(), "x"));
  std::vector<std::string> seen;
  EXPECT_OK(read_archive(archive, "x",
                         {[](std::string_view path, uint64_t) { return path != "tests/a.toml"; },
                          [&](ArchiveFile&& file) -> Result<> {
                            seen.push_back(file.path + ":" + std::to_string(file.bytes.size()));
                            return {};
                          }}));
  EXPECT_THAT(seen, testing::ElementsAre("pack.toml:11", "README.md:1000", "empty:0"));
}

TEST(PackContainer, TheSameFilesGiveTheSameBytes) {
  ASSERT_OK_AND_ASSIGN(const std::string one, write_archive(some_files(), "x"));
  auto files = some_files();
  std::reverse(files.begin(), files.end());
  ASSERT_OK_AND_ASSIGN(const std::string other, write_archive(files, "y"));
  EXPECT_EQ(one, other);
}

TEST(PackContainer, TarReadsIt) {
  if (std::system("tar --version > /dev/null && zstd --version > /dev/null 2>&1") != 0)
    GTEST_SKIP() << "tar and zstd did not read an archive: there is no zstd, which ./dev does not install";
  const TempDir dir;
  ASSERT_OK_AND_ASSIGN(const std::string archive, write_archive(some_files(), "x"));
  dir.write("a.mpack", archive);
  ASSERT_EQ(std::system(("cd " + dir.path().string() + " && tar --zstd -xf a.mpack").c_str()), 0);
  EXPECT_EQ(dir.read("README.md"), std::string(1000, 'r'));
  EXPECT_EQ(dir.read("tests/a.toml"), "x");
}

TEST(PackContainer, PathTricksAreRefused) {
  const std::string long_path(101, 'a');
  for (const std::string path : {"../evil", "/etc/passwd", "a/../../b", "a//b", "a/", "./a", ".", "..", "a\\b", "C:\\x",
                                 "a b", "a\nb", "caf\xC3\xA9",
                                 "\xD0\xB0"
                                 "cme",
                                 "-"}) {
    const bool fine = path == "-";
    EXPECT_THAT(reading(archive_of(entry(path, "x"))), fine ? HasSubstr("ok") : HasSubstr("rule P7")) << path;
  }
  EXPECT_FALSE(is_archive_path(long_path));
  EXPECT_FALSE(is_archive_path(std::string("a\0b", 3)));
  // A NUL inside the field ends the name for a C program; what follows must be zero.
  std::string hidden = raw_header("lib", 0);
  hidden[50] = 'x';
  EXPECT_THAT(reading(archive_of(hidden)), HasSubstr("rule P6"));
}

TEST(PackContainer, OnlyRegularFilesAreTaken) {
  for (const auto& [type, word] : std::vector<std::pair<char, std::string>>{{'1', "hard link"},
                                                                            {'2', "symbolic link"},
                                                                            {'3', "device"},
                                                                            {'4', "device"},
                                                                            {'5', "folder"},
                                                                            {'6', "pipe"},
                                                                            {'S', "sparse"},
                                                                            {'x', "extended"},
                                                                            {'g', "extended"},
                                                                            {'L', "extended"},
                                                                            {'\0', "no regular"},
                                                                            {'7', "no regular"}}) {
    EXPECT_THAT(reading(archive_of(entry("evil", "", type, "/etc/passwd"))),
                AllOf(HasSubstr("rule P5"), HasSubstr(word)));
  }
}

TEST(PackContainer, OtherHeadersAreRefused) {
  const auto changed = [&](size_t at, char value) {
    std::string header = raw_header("file", 1);
    header[at] = value;
    return reading(archive_of(header + padded("x")));
  };
  EXPECT_THAT(changed(103, '7'), HasSubstr("rule P6")) << "mode";
  EXPECT_THAT(changed(114, '1'), HasSubstr("rule P6")) << "owner";
  EXPECT_THAT(changed(145, '1'), HasSubstr("rule P6")) << "time";
  EXPECT_THAT(changed(124, '\x80'), HasSubstr("rule P6")) << "a size in base 256";
  EXPECT_THAT(changed(150, '9'), HasSubstr("rule P6")) << "sum";
  EXPECT_THAT(changed(257, 'G'), HasSubstr("rule P6")) << "magic";
  EXPECT_THAT(changed(345, 'p'), HasSubstr("rule P6")) << "prefix";
  EXPECT_THAT(changed(511, 'z'), HasSubstr("rule P6")) << "the end of the header";
  std::string tail = entry("file", "x");
  tail.back() = 'y';
  EXPECT_THAT(reading(archive_of(tail)), HasSubstr("rule P6")) << "padding";
}

TEST(PackContainer, DuplicatesAndDisorderAreRefused) {
  EXPECT_THAT(reading(archive_of(entry("a", "1") + entry("a", "2"))), HasSubstr("rule P8"));
  EXPECT_THAT(reading(archive_of(entry("b", "1") + entry("a", "2"))), HasSubstr("rule P8"));
  EXPECT_THAT(reading(archive_of(entry("a", "1") + entry("a/b", "2"))), HasSubstr("rule P8"));
  EXPECT_THAT(reading(archive_of(entry("a", "1") + entry("a-b", "2") + entry("a/b", "2"))), HasSubstr("rule P8"));
  EXPECT_THAT(reading(zstd(kFirst + kFirst + end_blocks())), HasSubstr("rule P8"));
  EXPECT_THAT(reading(zstd(entry("a", "1") + kFirst + end_blocks())), HasSubstr("rule P10"));
}

TEST(PackContainer, CutAndLongerArchivesAreRefused) {
  const std::string good = archive_of(entry("a", "1"));
  EXPECT_EQ(reading(good), "ok");
  for (size_t size = 0; size < good.size(); ++size)
    EXPECT_THAT(reading(std::string_view(good).substr(0, size)), HasSubstr("rule P2")) << size;
  EXPECT_THAT(reading(good + "x"), HasSubstr("rule P2"));
  EXPECT_THAT(reading(good + good), HasSubstr("rule P2"));
  EXPECT_THAT(reading(std::string("\x50\x2A\x4D\x18\x00\x00\x00\x00", 8) + good), HasSubstr("rule P2")) << "skippable";
  EXPECT_THAT(reading(zstd(kFirst + end_blocks(), 3, false)), HasSubstr("no checksum"));
  const std::string tar = kFirst + entry("a", std::string(600, 'a')) + end_blocks();
  for (const size_t size : {tar.size() - 512, tar.size() - 1024, tar.size() - 1500, tar.size() - 1, size_t{512}})
    EXPECT_THAT(reading(zstd(std::string_view(tar).substr(0, size))), HasSubstr("rule P9")) << size;
  EXPECT_THAT(reading(zstd(tar + std::string(512, '\0'))), HasSubstr("rule P9"));
  EXPECT_THAT(reading(zstd(tar + entry("b", "hidden"))), HasSubstr("rule P9"));
}

// 300 MiB of zeros in some 10 KiB cost no more than ten times what 15 MiB do, which are allowed.
TEST(PackContainer, BombsCostLittle) {
  const std::string zeros(size_t{100} << 20, '\0');
  std::string tar = kFirst;
  for (const char* name : {"a", "b", "c"}) tar += entry(name, zeros);
  const std::string bomb = zstd(tar + end_blocks());
  ASSERT_LT(bomb.size(), 100'000U);
  const std::string allowed = archive_of(entry("a", zeros.substr(0, size_t{15} << 20)));
  const double most = 10 * least_cpu_seconds_of([&] { EXPECT_EQ(reading(allowed), "ok"); });
  EXPECT_LT(cpu_seconds_of([&] { EXPECT_THAT(reading(bomb), HasSubstr("rule P4")); }), most);
  // A file that claims more than is allowed is refused by its header, before a byte of it is read.
  EXPECT_THAT(reading(archive_of(raw_header("big", uint64_t{1} << 30))), HasSubstr("rule P4"));
}

TEST(PackContainer, ADescriptionOfAGigabyteIsRefusedByItsHeader) {
  EXPECT_THAT(reading(zstd(raw_header("pack.toml", uint64_t{1} << 30))),
              AnyOf(HasSubstr("rule P10"), HasSubstr("rule P4")));
  EXPECT_THAT(reading(zstd(raw_header("pack.toml", (uint64_t{1} << 20) + 1))), HasSubstr("rule P10"));
}

TEST(PackContainer, AMillionEntriesAreRefused) {
  std::string tar = kFirst;
  tar.reserve(size_t{1'000'001} * 512);
  for (int i = 0; i < 1'000'000; ++i) {
    std::array<char, 16> name{};
    std::snprintf(name.data(), name.size(), "f%07d", i);
    const TarHeader header = tar_header(name.data(), 0);
    tar.append(header.data(), header.size());
  }
  EXPECT_THAT(reading(zstd(tar, 1)), HasSubstr("rule P3"));
}

TEST(PackContainer, RandomChangesNeverPass) {
  ASSERT_OK_AND_ASSIGN(const std::string good, write_archive(some_files(), "x"));
  std::string tar = kFirst + entry("a", "1") + entry("b", std::string(700, 'b')) + end_blocks();
  for (size_t at = 0; at < good.size(); ++at) {  // the frame's checksum
    std::string bad = good;
    bad[at] = static_cast<char>(bad[at] ^ 0x10);
    const std::string now = contents(bad);
    EXPECT_TRUE(now.starts_with("error") || now == contents(good)) << at << ": " << now;
  }
  // Every bit of every header and of every padding counts.
  size_t num_accepted = 0;
  for (size_t at = 0; at < tar.size(); ++at) {
    std::string bad = tar;
    bad[at] = static_cast<char>(bad[at] ^ 1);
    num_accepted += reading(zstd(bad, 1)) == "ok" ? 1 : 0;
  }
  // What may differ: the contents of the three files, and a letter of a path in its right order with a right sum
  // cannot, since the sum covers it.
  EXPECT_EQ(num_accepted, 11U + 1U + 700U);
}

}  // namespace
}  // namespace mortise::test
